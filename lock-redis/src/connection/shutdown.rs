//! [`ShutdownRegistry`]: ends the exclusive connections to a server that is no longer the master.
//!
//! Their users do not wait for the deadline: the old master may be frozen, and another one serves.

use super::transport::Transport;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(super) struct ShutdownRegistry(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_shut: bool,
    open: Vec<Weak<Transport>>,
}

impl ShutdownRegistry {
    /// Adds a new connection; `false` if there may be none any more.
    pub(super) fn register(&self, transport: &Arc<Transport>) -> bool {
        let mut state = self.0.lock();
        if !state.is_shut {
            state.open.retain(|open| open.strong_count() > 0);
            state.open.push(Arc::downgrade(transport));
        }
        !state.is_shut
    }

    pub(super) fn is_shut(&self) -> bool {
        self.0.lock().is_shut
    }

    pub(super) fn shut(&self) {
        let mut state = self.0.lock();
        state.is_shut = true;
        let open = std::mem::take(&mut state.open);
        drop(state);
        open.iter().filter_map(Weak::upgrade).for_each(|transport| transport.shut());
    }
}
