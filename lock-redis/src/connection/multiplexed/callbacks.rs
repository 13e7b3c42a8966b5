//! Requests that no thread waits for: sends them, reads their replies, and runs their callbacks.

use super::pending::{
    CallResult, DeferredWakeups, MayHaveLeft, PendingRequests, RequestId, UNEXPECTED,
};
use super::{CallbackRequest, MultiplexedConnection, ReplyCheck};
use crate::connection::CallError;
use lock_core::Moment;
use lock_core::backend::contain;
use parking_lot::MutexGuard;

impl MultiplexedConnection {
    /// Sends as much of a request as the peer takes at once, or leaves the sending to a thread that
    /// writes already, or to a reader that is awake. Does not wait: the thread that reads the
    /// reply, or fails the request, runs the callback.
    pub(in crate::connection) fn submit(
        &self,
        request: &[u8],
        by: Moment,
        callback: CallbackRequest,
    ) -> Result<(), (CallbackRequest, CallError)> {
        let now = self.clock.now();
        let mut pending = self.pending.lock();
        pending.push_callback(request, (now, by), callback)?;
        if Self::must_write_now(&pending) {
            drop(self.write_for_all(pending));
        }
        Ok(())
    }

    /// Writes the unsent bytes. If the peer does not take all, wakes a waiting thread to write the
    /// rest. Otherwise no thread would write the rest until the reader wakes.
    fn write_for_all<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
    ) -> MutexGuard<'a, PendingRequests> {
        if pending.wants_writer() {
            pending = self.write(pending);
        }
        let mut wakeups = DeferredWakeups::default();
        pending.wake_a_writer(&mut wakeups);
        self.deliver(pending, wakeups)
    }

    /// Fails the callbacks whose deadline has passed, writes the unsent bytes, and reads replies if
    /// no thread reads. Does not wait. Returns `true` if callbacks are still pending.
    pub(super) fn poll(&self) -> bool {
        let mut pending = self.pending.lock();
        let mut wakeups = DeferredWakeups::default();
        pending.expire_callbacks(self.clock.now(), &self.server, &mut wakeups);
        pending = self.write_for_all(self.deliver(pending, wakeups));
        if pending.has_callbacks() && pending.reader.is_none() {
            pending = self.read_unattended(pending);
        }
        pending.has_callbacks()
    }

    pub(super) fn has_callbacks(&self) -> bool {
        self.pending.lock().has_callbacks()
    }

    /// Returns the number of the last pending callback request, among the requests up to `until`.
    pub(in crate::connection) fn last_callback(&self, until: RequestId) -> Option<RequestId> {
        self.pending.lock().last_callback(until)
    }

    pub(super) fn run_callback(&self, callback: CallbackRequest, outcome: CallResult) {
        let is_unsent = !callback.by_hash.is_empty();
        let outcome = outcome.and_then(|reply| match reply.is_noscript() && is_unsent {
            true => Err(MayHaveLeft(false).timed_out(&self.server)), // to be sent again
            false => Ok(reply),
        });
        let result = outcome.map_err(Into::into);
        // A panic must not reach the caller that happens to read the reply.
        let checked = contain(|| (callback.done)(result));
        if matches!(checked, Some(ReplyCheck::Unexpected)) {
            self.end(&self.server.garbage(UNEXPECTED));
        }
    }
}
