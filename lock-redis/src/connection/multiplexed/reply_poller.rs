//! [`ReplyPoller`]: a thread that reads the replies to callbacks while no caller reads.
//!
//! Replies to callbacks are read along with the replies to later calls. Where none follow, this
//! thread polls: from the first callback on, until there was none for a while.

use super::MultiplexedConnection;
use lock_core::backend::contain;
use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long a reply that has arrived may stay unread.
const TICK: Duration = Duration::from_millis(50);
/// How long the thread stays without callbacks. The next callback starts another.
const IDLE: Duration = Duration::from_secs(2);

pub(crate) struct ReplyPoller(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    signal: Arc<Signal>,
    polled: Mutex<Polled>,
}

#[derive(Default)]
struct Polled {
    /// Connections that may have callbacks. They outlive the client that left callbacks on them.
    connections: Vec<Arc<MultiplexedConnection>>,
    running: bool,
    closing: bool,
}

impl ReplyPoller {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { clock, signal: Arc::default(), polled: Mutex::default() }))
    }

    /// Has the callbacks on `connection` polled.
    pub(crate) fn add(&self, connection: &Arc<MultiplexedConnection>) {
        let mut polled = self.0.polled.lock();
        if !polled.connections.iter().any(|known| Arc::ptr_eq(known, connection)) {
            polled.connections.push(Arc::clone(connection));
        }
        if polled.running {
            return;
        }
        let inner = Arc::clone(&self.0);
        let started =
            thread::Builder::new().name("distlock-collect".to_owned()).spawn(move || inner.run());
        // Without a thread, the next caller reads the reply, or the next callback starts one.
        polled.running = started.is_ok();
    }
}

impl Drop for ReplyPoller {
    fn drop(&mut self) {
        self.0.polled.lock().closing = true;
        self.0.signal.raise();
    }
}

impl Inner {
    fn run(&self) {
        let mut busy = self.clock.now();
        loop {
            self.clock.wait(&self.signal, self.clock.now() + TICK);
            let connections = self.polled.lock().connections.clone();
            // A callback that panics must not end this thread.
            let has_callbacks = connections
                .iter()
                .filter(|connection| contain(|| connection.poll()).unwrap_or(true));
            let now = self.clock.now();
            if has_callbacks.count() > 0 {
                busy = now;
            }
            drop(connections);
            if self.is_done(busy, now) {
                return;
            }
        }
    }

    /// Drops connections without callbacks to come. Whether the thread has to end now.
    fn is_done(&self, busy: Moment, now: Moment) -> bool {
        let mut polled = self.polled.lock();
        let closing = polled.closing;
        // A connection that only the poller has was replaced: it gets no callbacks, and stays open.
        let is_unused = |connection: &Arc<MultiplexedConnection>| {
            closing || connection.is_closed() || Arc::strong_count(connection) == 1
        };
        polled
            .connections
            .retain(|connection| connection.has_callbacks() || !is_unused(connection));
        let is_idle = polled.connections.iter().all(|connection| !connection.has_callbacks());
        if !is_idle || !(closing || now.since(busy) >= IDLE) {
            return false;
        }
        // Under the lock: the next callback starts another thread.
        polled.connections.clear();
        polled.running = false;
        true
    }
}

impl fmt::Debug for ReplyPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyPoller")
    }
}
