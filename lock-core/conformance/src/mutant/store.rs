//! The state of a mutant and of its simulated replicas.

use lock_core::backend::Wake;
use lock_core::{Moment, OwnerId, OwnerLabel, TokenRange};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The state that all clients share.
#[derive(Debug, Default)]
pub(super) struct MutantStore {
    pub(super) state: Mutex<MutantState>,
    /// Numbers for clients and watchers.
    pub(super) next: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct MutantState {
    pub(super) held: HashMap<String, Held>,
    /// The last token of each name: the end of the last granted range, or the last used token that
    /// a release wrote back.
    pub(super) counters: HashMap<String, u64>,
    /// The end of each tombstone, by key and refused owner.
    pub(super) tombstones: HashMap<(String, OwnerId), Moment>,
    /// The last label of each lock, with its owner.
    pub(super) labels: HashMap<String, (OwnerId, Option<OwnerLabel>)>,
    pub(super) watchers: Vec<Watcher>,
    pub(super) copies: ReplicaCopies,
    /// The readers, permits and waiters of each name.
    pub(super) kinds: HashMap<String, Kinds>,
    /// The grants that too few replicas confirmed. Recorded only under the mutation
    /// `UnconfirmedStays`.
    pub(super) unconfirmed: HashSet<(String, OwnerId)>,
}

/// The readers, permits and waiters of a name.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    /// Readers or holders of permits: the owner, the end of its lease, and the number of permits.
    pub(super) shares: Vec<(OwnerId, Moment, u32)>,
    /// The limit, if the name is a semaphore.
    pub(super) limit: Option<u32>,
    /// The waiting writer, and until when it keeps readers out.
    pub(super) writer_waits: Option<(OwnerId, Moment)>,
    /// Waiters in order, each with the end of its presence.
    pub(super) waiters: Vec<(OwnerId, Moment)>,
}

impl Kinds {
    /// Queues the owner, or extends its presence in the queue, until this time.
    pub(super) fn enqueue(&mut self, owner: OwnerId, until: Moment) {
        match self.waiters.iter_mut().find(|(waiter, _)| *waiter == owner) {
            Some((_, end)) => *end = until,
            None => self.waiters.push((owner, until)),
        }
    }
}

/// The number of replicas.
pub(super) const COUNT: u32 = 2;

/// The state of the replicas. It is copied from the store when confirmations are counted, and when
/// replicas are paused or resumed.
#[derive(Debug, Default)]
pub(super) struct ReplicaCopies {
    /// The number of paused replicas, counted from the first replica.
    pub(super) held_back: u32,
    /// The held locks of each replica, and until when they are held.
    pub(super) held: [HashMap<String, Moment>; COUNT as usize],
}

impl MutantState {
    /// Updates the replicas that are not paused, and returns their number.
    pub(super) fn replicate(&mut self) -> u32 {
        let all: HashMap<_, _> = self
            .held
            .iter()
            .map(|(key, held)| (key.clone(), held.until))
            .collect();
        let held_back = self.copies.held_back;
        for copy in self.copies.held.iter_mut().skip(held_back as usize) {
            copy.clone_from(&all);
        }
        COUNT - held_back
    }
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) owner: OwnerId,
    pub(super) lease: Duration,
    pub(super) until: Moment,
    pub(super) tokens: Option<TokenRange>,
}

pub(super) struct Watcher {
    pub(super) number: u64,
    pub(super) client: u64,
    pub(super) key: String,
    pub(super) since: Moment,
    pub(super) wake: Arc<dyn Wake>,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// A registered watch, removed on drop.
pub(super) struct MutantWatch {
    pub(super) store: Arc<MutantStore>,
    pub(super) number: u64,
}

impl Drop for MutantWatch {
    fn drop(&mut self) {
        self.store
            .state
            .lock()
            .watchers
            .retain(|watcher| watcher.number != self.number);
    }
}
