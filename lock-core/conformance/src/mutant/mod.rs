//! [`Mutant`]: a small store with one mutation, to test the cases.
//!
//! The mutant shares no code with the in-memory store. Otherwise the suite might require what the
//! in-memory store happens to do. Each place where a store can fail checks for the mutation.

mod backend;
mod kinds;
mod mutation;
mod replicas;
mod store;

pub use mutation::Mutation;

use super::subject::{ReplicaSet, Seen, Subject};
use super::virtual_time::VirtualTime;
use backend::MutantBackend;
use lock_core::backend::Backend;
use lock_core::{Clock, Context, LockName};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Weak};
use store::MutantStore;

/// A store with one mutation, or none.
#[derive(Debug)]
pub struct Mutant {
    store: Arc<MutantStore>,
    /// Made when the suite first requests the clock.
    time: LazyLock<VirtualTime>,
    mutation: Option<Mutation>,
}

impl Mutant {
    /// Makes a store with this mutation.
    #[must_use]
    pub fn new(mutation: Mutation) -> Self {
        Self {
            store: Arc::default(),
            time: LazyLock::new(VirtualTime::new),
            mutation: Some(mutation),
        }
    }

    /// Makes the store without a mutation, which must pass.
    #[must_use]
    pub fn unmutated() -> Self {
        Self {
            store: Arc::default(),
            time: LazyLock::new(VirtualTime::new),
            mutation: None,
        }
    }
}

impl Subject for Mutant {
    fn name(&self) -> String {
        self.mutation.map_or_else(
            || "no mutation".to_owned(),
            |mutation| format!("{mutation:?}"),
        )
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.time.clock()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let (store, mutation, clock) = (
            Arc::clone(&self.store),
            self.mutation,
            Arc::clone(&context.clock),
        );
        let number = store.next.fetch_add(1, Ordering::Relaxed);
        Arc::new_cyclic(|me| MutantBackend {
            store,
            mutation,
            clock,
            number,
            me: Weak::clone(me),
        })
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let now = self.clock().now();
        match self.store.state.lock().held.get(lock.as_str()) {
            Some(held) if held.until > now => Seen::held(Some(held.until.since(now))),
            _ => Seen::FREE,
        }
    }

    fn lose(&self, lock: &LockName) {
        let mut state = self.store.state.lock();
        state.held.remove(lock.as_str());
        state.counters.remove(lock.as_str());
    }

    fn replicas(&self) -> Option<&dyn ReplicaSet> {
        Some(self)
    }
}

impl ReplicaSet for Mutant {
    fn count(&self) -> u32 {
        store::COUNT
    }

    fn hold_back(&self, replicas: u32) {
        let mut state = self.store.state.lock();
        state.copies.held_back = replicas;
        state.replicate();
    }

    fn probe(&self, replica: u32, lock: &LockName) -> Seen {
        let now = self.clock().now();
        let state = self.store.state.lock();
        match state.copies.held[replica as usize].get(lock.as_str()) {
            Some(until) if *until > now => Seen::held(Some(until.since(now))),
            _ => Seen::FREE,
        }
    }
}
