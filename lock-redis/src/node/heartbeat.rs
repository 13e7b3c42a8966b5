//! [`Heartbeat`]: a check of the history of a server's data from time to time while the server is
//! used: that the data is still the same, and the server still a master. Renewals check this each
//! time, on their own connections.

use crate::connection::{
    Batch, ConnectionLike, Dialer, HISTORY, Introduction, Reply, ReplyCheck, SharedConnection,
};
use lock_core::Moment;
use lock_core::backend::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time between two reads of the history of a used server's data, so that a demotion is noticed
/// on open connections. Each batch of renewals also reads the history.
const INTERVAL: Duration = Duration::from_secs(5);

/// The periodic check of the history of a server's data; see the [module](self).
#[derive(Debug)]
pub(super) struct Heartbeat {
    dialer: Arc<Dialer>,
    /// The time of the next check, in nanoseconds; 0 before the first request, which causes no
    /// check, because its connection has just been checked.
    next: AtomicU64,
}

impl Heartbeat {
    pub(super) fn new(dialer: Arc<Dialer>) -> Self {
        Self {
            dialer,
            next: AtomicU64::new(0),
        }
    }

    /// Reads the history after a reply, if it is time for that.
    pub(super) fn look(&self, link: &mut dyn ConnectionLike, by: Moment) {
        let Some(generation) = link.history().cloned().filter(|_| self.is_due(by)) else {
            return;
        };
        let asked = self.dialer.clock().now();
        if let Ok(reply) = link.call(&HISTORY, by) {
            let answered = self.dialer.clock().now();
            if let Some(introduction) = Introduction::of(&reply, asked, answered) {
                self.dialer.note(&generation, introduction);
            }
        }
    }

    /// Reads the history behind the requests that were already sent, without waiting for the reply,
    /// if it is time for that.
    pub(super) fn look_behind(&self, link: &SharedConnection, by: Moment) {
        if !self.is_due(by) {
            return;
        }
        let Some(generation) = link.history() else {
            return;
        };
        let (dialer, asked) = (Arc::clone(&self.dialer), self.dialer.clock().now());
        let done = move |answer: Result<Reply, Failure>| {
            let answered = dialer.clock().now();
            if let Some(introduction) = answer
                .ok()
                .and_then(|reply| Introduction::of(&reply, asked, answered))
            {
                dialer.note(&generation, introduction);
            }
            ReplyCheck::Expected
        };
        link.submit(&Batch::from_requests(&[HISTORY]), by, Box::new(done));
    }

    /// Returns whether a check is due. If so, or at the first request, sets the time of the next
    /// check. `by` stands for the present time: it is at most a command timeout ahead, and saves
    /// reading the clock.
    fn is_due(&self, by: Moment) -> bool {
        let (now, next) = (by.as_nanos(), self.next.load(Ordering::Relaxed));
        let later = (by + INTERVAL).as_nanos();
        now >= next
            && self
                .next
                .compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            && next > 0
    }
}
