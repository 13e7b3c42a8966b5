//! [`ShutdownRegistry`]: ends the exclusive connections to a server that is no longer the master,
//! or no longer used.
//!
//! Otherwise the threads that use these connections would wait until their deadlines for an old
//! master that may be frozen, although another server is the master now.

use super::transport::Transport;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(super) struct ShutdownRegistry {
    /// Written while `open` is locked.
    is_shut: AtomicBool,
    open: Mutex<Vec<Weak<Transport>>>,
}

impl ShutdownRegistry {
    /// Adds a new connection; returns `false` after [`shut`](Self::shut).
    pub(super) fn register(&self, transport: &Arc<Transport>) -> bool {
        let mut open = self.open.lock();
        let is_shut = self.is_shut();
        if !is_shut {
            open.retain(|open| open.strong_count() > 0);
            open.push(Arc::downgrade(transport));
        }
        !is_shut
    }

    pub(super) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire)
    }

    /// Returns the flag that [`is_shut`](Self::is_shut) reads.
    pub(super) fn flag(&self) -> &AtomicBool {
        &self.is_shut
    }

    pub(super) fn shut(&self) {
        let mut open = self.open.lock();
        self.is_shut.store(true, Ordering::Release);
        let open = std::mem::take(&mut *open);
        open.iter()
            .filter_map(Weak::upgrade)
            .for_each(|transport| transport.shut());
    }
}
