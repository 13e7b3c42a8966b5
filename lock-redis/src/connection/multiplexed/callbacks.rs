//! Requests that nobody waits for: how they leave, who reads their answers, and how those are told.

use super::pending::{CallResult, DeferredWakeups, MayHaveLeft, PendingRequests};
use super::{CallbackRequest, MultiplexedConnection, ReplyCheck};
use crate::connection::{CallError, with_text};
use crate::reply::Reply;
use lock_core::Moment;
use parking_lot::MutexGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl MultiplexedConnection {
    /// Sends a request and returns when it has left, or as much of it as the peer takes. Its answer is told to the
    /// callback by whoever reads next.
    pub(in crate::connection) fn submit(
        &self,
        request: &[u8],
        by: Moment,
        callback: CallbackRequest,
    ) -> Result<(), (CallbackRequest, CallError)> {
        let mut pending = self.pending.lock();
        pending.push_callback(request, by, callback)?;
        drop(self.write_for_all(pending));
        Ok(())
    }

    /// Writes what is to be written. What the peer does not take at once is left to somebody who waits: nobody who is awake
    /// would see to it.
    fn write_for_all<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
    ) -> MutexGuard<'a, PendingRequests> {
        if pending.wants_writer() {
            pending = self.write(pending);
        }
        let mut wakeups = DeferredWakeups::default();
        if pending.wants_writer() && (pending.reader.is_none() || pending.asleep) {
            pending.wake_a_writer(&mut wakeups);
        }
        self.conclude(pending, wakeups)
    }

    /// Reads, without waiting, what has come for those who do not wait; and gives up those whose time has come. Whether
    /// any are left.
    pub(super) fn collect(&self) -> bool {
        let mut pending = self.pending.lock();
        let mut wakeups = DeferredWakeups::default();
        pending.expire_callbacks(self.clock.now(), &self.server, &mut wakeups);
        pending = self.write_for_all(self.conclude(pending, wakeups));
        if pending.has_callbacks() && pending.reader.is_none() {
            pending = self.read_unattended(pending);
        }
        pending.has_callbacks()
    }

    pub(in crate::connection) fn has_callbacks(&self) -> bool {
        self.pending.lock().has_callbacks()
    }

    /// `by` is when it is given up: what is sent once more is given no more time than it had.
    pub(super) fn tell(&self, mut callback: CallbackRequest, by: Moment, mut outcome: CallResult) {
        if let Ok(Reply::Error(error)) = &outcome
            && error.is_noscript()
            && !callback.by_hash.is_empty()
        {
            let again = with_text(&std::mem::take(&mut callback.by_hash), callback.text);
            let sent = if self.clock.now() < by {
                self.submit(&again, by, callback)
            } else {
                Err((callback, self.too_late(MayHaveLeft(false))))
            };
            match sent {
                Ok(()) => return,
                Err((unsent, error)) => (callback, outcome) = (unsent, Err(error)),
            }
        }
        let result = outcome.map_err(Into::into);
        // It runs in the middle of somebody else's call.
        let heard = catch_unwind(AssertUnwindSafe(|| (callback.done)(result)));
        if matches!(heard, Ok(ReplyCheck::Unexpected)) {
            self.close("not one that our script gives");
        }
    }
}
