//! [`ReplyPoller`]: reads the answers that nobody waits for, where nobody else does.
//!
//! What a thread leaves behind - a release that it did not wait for - is read along with the answer to whatever is asked
//! next. Only if nobody asks anything more is there nobody to read it. For that a thread looks in from time to time,
//! from the first such request on, until there was none for a while. It never waits on the connection.

use super::MultiplexedConnection;
use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long an answer that is there may stay unread.
const TICK: Duration = Duration::from_millis(50);
/// How long the thread stays without work before it ends; the next work starts another.
const IDLE: Duration = Duration::from_secs(2);

pub(crate) struct ReplyPoller(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    signal: Arc<Signal>,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    /// Connections that may have callbacks. Kept alive by this, so that their answers are read also when the client has gone.
    connections: Vec<Arc<MultiplexedConnection>>,
    running: bool,
    closing: bool,
}

impl ReplyPoller {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { clock, signal: Arc::default(), work: Mutex::default() }))
    }

    /// Sees to it that the answers to what is under way on `connection` are read.
    pub(crate) fn look_after(&self, connection: &Arc<MultiplexedConnection>) {
        let mut work = self.0.work.lock();
        if !work.connections.iter().any(|known| Arc::ptr_eq(known, connection)) {
            work.connections.push(Arc::clone(connection));
        }
        if work.running {
            return;
        }
        let inner = Arc::clone(&self.0);
        let started =
            thread::Builder::new().name("distlock-collect".to_owned()).spawn(move || inner.run());
        // Where no thread is to be had, whoever asks next reads it, or is the first to find one again.
        work.running = started.is_ok();
    }
}

impl Drop for ReplyPoller {
    fn drop(&mut self) {
        self.0.work.lock().closing = true;
        self.0.signal.raise();
    }
}

impl Inner {
    fn run(&self) {
        let mut busy = self.clock.now();
        loop {
            self.clock.wait(&self.signal, self.clock.now() + TICK);
            let connections = self.work.lock().connections.clone();
            // What an callback does is not ours, and it must not end this thread.
            let has_callbacks = connections.iter().filter(|connection| {
                catch_unwind(AssertUnwindSafe(|| connection.collect())).unwrap_or(true)
            });
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

    /// Lets go of connections that need nothing any more. Whether this thread may end, which it must do then.
    fn is_done(&self, busy: Moment, now: Moment) -> bool {
        let mut work = self.work.lock();
        let closing = work.closing;
        // One that nobody else has will get no callbacks any more: it was replaced, and may be open for ever.
        let is_let_go = |connection: &Arc<MultiplexedConnection>| {
            closing || connection.is_closed() || Arc::strong_count(connection) == 1
        };
        work.connections.retain(|connection| connection.has_callbacks() || !is_let_go(connection));
        let is_idle = work.connections.iter().all(|connection| !connection.has_callbacks());
        if !is_idle || !(closing || now.since(busy) >= IDLE) {
            return false;
        }
        // Under the lock: whoever submits next starts another.
        work.connections.clear();
        work.running = false;
        true
    }
}

impl fmt::Debug for ReplyPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyPoller")
    }
}
