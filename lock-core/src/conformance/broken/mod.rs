//! [`Broken`]: a small store, sound but for one flaw. What a case is worth is shown by the flaws that it catches.
//!
//! It is written for this alone and shares nothing with the in-memory store, so that the exam does not only ask for what
//! that one happens to do. At every place where a store can go wrong there is a question for the flaw.

mod flaw;
mod opened;
mod replicas;
mod store;

pub use flaw::Flaw;

use super::replicas::ReplicaSet;
use super::subject::{Seen, Subject};
use super::virtual_time::VirtualTime;
use crate::backend::Backend;
use crate::clock::Clock;
use crate::name::LockName;
use crate::scheme::Context;
use opened::Opened;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use store::Store;

/// A store with one flaw, or none: a [`Subject`] like any other.
#[derive(Debug)]
pub struct Broken {
    store: Arc<Store>,
    time: VirtualTime,
    flaw: Option<Flaw>,
}

impl Broken {
    /// A store with this flaw.
    #[must_use]
    pub fn new(flaw: Flaw) -> Self {
        Self { store: Arc::default(), time: VirtualTime::new(), flaw: Some(flaw) }
    }

    /// The same store without any: it must pass.
    #[must_use]
    pub fn sound() -> Self {
        Self { store: Arc::default(), time: VirtualTime::new(), flaw: None }
    }
}

impl Subject for Broken {
    fn name(&self) -> String {
        self.flaw.map_or_else(|| "no flaw".to_owned(), |flaw| format!("{flaw:?}"))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.time.clock()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let (store, flaw, clock) = (Arc::clone(&self.store), self.flaw, Arc::clone(&context.clock));
        let number = store.next.fetch_add(1, Ordering::Relaxed);
        Arc::new_cyclic(|me| Opened { store, flaw, clock, number, me: Weak::clone(me) })
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

impl ReplicaSet for Broken {
    fn count(&self) -> u32 {
        replicas::COUNT
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
