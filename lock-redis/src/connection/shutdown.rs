//! [`ShutdownRegistry`]: the time for which a server is held for a master. When it is over, whoever waits for that server's answer
//! on a connection of its own need not wait for the deadline: the server may be frozen, and another one is asked now.

use super::Stream;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

/// The connections of a server that may be ended from outside.
#[derive(Debug, Default)]
pub(super) struct ShutdownRegistry(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    open: Vec<Weak<SocketHandle>>,
}

/// Another hand on a connection's socket. Closed with the connection.
#[derive(Debug)]
pub(super) struct SocketHandle(OwnedFd);

impl SocketHandle {
    pub(super) fn of(stream: &Stream) -> io::Result<Self> {
        stream.as_fd().try_clone_to_owned().map(Self)
    }

    /// Whoever reads or writes there is woken, with an error.
    fn shut(&self) {
        let _already_closed = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

impl ShutdownRegistry {
    /// Notes a new connection; `false` if there must be none any more.
    pub(super) fn admit(&self, handle: &Arc<SocketHandle>) -> bool {
        let mut state = self.0.lock();
        if !state.is_over {
            state.open.retain(|open| open.strong_count() > 0);
            state.open.push(Arc::downgrade(handle));
        }
        !state.is_over
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.lock().is_over
    }

    pub(super) fn end(&self) {
        let mut state = self.0.lock();
        state.is_over = true;
        let open = std::mem::take(&mut state.open);
        drop(state);
        open.iter().filter_map(Weak::upgrade).for_each(|handle| handle.shut());
    }
}
