//! [`ReplyPoller`]: reads the replies to callbacks in the background while no caller reads.
//!
//! Replies to callbacks are read along with the replies to later calls. If no calls follow, this
//! task polls: from the first callback until none has been pending for a while.

use super::MultiplexedConnection;
use lock_core::backend::{BackgroundTask, contain};
use lock_core::{Clock, Moment};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The time that an arrived reply may stay unread if no thread waits for it, so that the failed
/// release of a dropped guard is noticed.
const TICK: Duration = Duration::from_millis(50);
/// The time without callbacks after which the thread ends, so that an idle client does not keep it.
/// The next callback starts a new thread.
const IDLE: Duration = Duration::from_secs(2);

pub(crate) struct ReplyPoller(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    task: BackgroundTask,
    polled: Mutex<Polled>,
}

#[derive(Default)]
struct Polled {
    /// Connections that may have pending callbacks. Held here until these callbacks have run, even
    /// if the client is dropped before.
    connections: Vec<Arc<MultiplexedConnection>>,
    closing: bool,
}

impl ReplyPoller {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            clock,
            task: BackgroundTask::default(),
            polled: Mutex::default(),
        }))
    }

    /// Starts to poll the callbacks on `connection`.
    pub(crate) fn add(&self, connection: &Arc<MultiplexedConnection>) {
        let mut polled = self.0.polled.lock();
        if !polled
            .connections
            .iter()
            .any(|known| Arc::ptr_eq(known, connection))
        {
            polled.connections.push(Arc::clone(connection));
        }
        drop(polled);
        let (inner, mut busy) = (Arc::clone(&self.0), self.0.clock.now());
        // If no thread starts, the next caller reads the reply, or the next callback starts a
        // thread.
        let _started = self
            .0
            .task
            .start(&self.0.clock, move || inner.turn(&mut busy));
    }
}

impl Drop for ReplyPoller {
    fn drop(&mut self) {
        self.0.polled.lock().closing = true;
        self.0.task.wake();
    }
}

impl Inner {
    fn turn(&self, busy: &mut Moment) -> Option<Moment> {
        let connections = self.polled.lock().connections.clone();
        // A callback that panics must not prevent the polling of other connections.
        let has_callbacks = connections
            .iter()
            .filter(|connection| contain(|| connection.poll()).unwrap_or(true));
        let now = self.clock.now();
        if has_callbacks.count() > 0 {
            *busy = now;
        }
        drop(connections);
        (!self.is_done(*busy, now)).then_some(now + TICK)
    }

    /// Drops connections that will have no more callbacks. Returns `true` if the task has to end
    /// now.
    fn is_done(&self, busy: Moment, now: Moment) -> bool {
        let mut polled = self.polled.lock();
        let closing = polled.closing;
        // A connection that only the poller holds was replaced: it gets no callbacks, but would
        // stay open.
        let is_unused = |connection: &Arc<MultiplexedConnection>| {
            closing || connection.is_closed() || Arc::strong_count(connection) == 1
        };
        polled
            .connections
            .retain(|connection| connection.has_callbacks() || !is_unused(connection));
        let is_idle = polled
            .connections
            .iter()
            .all(|connection| !connection.has_callbacks());
        let is_done = is_idle && (closing || now.since(busy) >= IDLE);
        if is_done {
            polled.connections.clear();
        }
        is_done
    }
}

impl fmt::Debug for ReplyPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyPoller")
    }
}
