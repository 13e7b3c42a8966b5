//! The state of a mutant.

use super::replicas::ReplicaCopies;
use crate::backend::Wake;
use crate::clock::Moment;
use crate::owner::OwnerId;
use crate::token::TokenRange;
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
    /// The last granted token.
    pub(super) counters: HashMap<String, u64>,
    /// Tombstones: refused owners, and until when.
    pub(super) tombstones: HashMap<(String, OwnerId), Moment>,
    pub(super) watchers: Vec<Watcher>,
    pub(super) copies: ReplicaCopies,
    /// Grants that too few replicas confirmed.
    pub(super) unconfirmed: HashSet<(String, OwnerId)>,
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
        f.debug_struct("Watcher").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A registered watch, removed on drop.
pub(super) struct MutantWatch {
    pub(super) store: Arc<MutantStore>,
    pub(super) number: u64,
}

impl Drop for MutantWatch {
    fn drop(&mut self) {
        self.store.state.lock().watchers.retain(|watcher| watcher.number != self.number);
    }
}
