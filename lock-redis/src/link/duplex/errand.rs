//! Requests that nobody waits for: how they leave, who reads their answers, and how those are told.

use super::line::{Aftermath, Outcome, Ticket};
use super::{Duplex, Errand, Heard, Reading};
use crate::link::{CallError, with_text};
use crate::reply::Reply;
use lock_core::Moment;
use rustix::net::RecvFlags;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The ticket of one who is not in the line, and reads.
const COLLECTOR: Ticket = 0;

impl Duplex {
    /// Sends a request and returns when it has left, or as much of it as the peer takes. Its answer is told to the
    /// errand by whoever reads next.
    pub(in crate::link) fn submit(
        &self,
        request: &[u8],
        by: Moment,
        errand: Errand,
    ) -> Result<(), (Errand, CallError)> {
        let mut line = self.line.lock();
        line.enter_errand(request, by, errand)?;
        if line.wants_writer() {
            line = self.write(line);
        }
        let mut after = Aftermath::default();
        if line.wants_writer() && (line.reader.is_none() || line.asleep) {
            line.wake_a_writer(&mut after);
        }
        drop(self.conclude(line, after));
        Ok(())
    }

    /// Reads, without waiting, what has come for those who do not wait; and gives up those whose time has come. Whether
    /// any are left.
    pub(super) fn collect(&self) -> bool {
        let mut line = self.line.lock();
        let mut after = Aftermath::default();
        line.give_up_errands(self.clock.now(), &self.server, &mut after);
        line = self.conclude(line, after);
        if line.wants_writer() {
            line = self.write(line);
        }
        if line.has_errands() && line.reader.is_none() {
            line.reader = Some(COLLECTOR);
            // Whoever comes meanwhile writes itself.
            line.asleep = true;
            drop(line);
            let take =
                |reading: &mut Reading| reading.inlet.take(&self.transport, RecvFlags::DONTWAIT);
            let after;
            (line, after) = self.read_with(take, None);
            line = self.conclude(line, after);
            if !line.is_empty() && self.clock.now() >= self.patience(&line) {
                line = self.give_up(line);
            }
            self.leave(line, COLLECTOR);
            line = self.line.lock();
        }
        line.has_errands()
    }

    pub(in crate::link) fn has_errands(&self) -> bool {
        self.line.lock().has_errands()
    }

    pub(super) fn tell(&self, mut errand: Errand, outcome: Outcome) {
        if let Ok(Reply::Error(error)) = &outcome
            && error.is_noscript()
            && !errand.by_hash.is_empty()
        {
            let again = with_text(&std::mem::take(&mut errand.by_hash), errand.text);
            let by = self.clock.now() + self.grace;
            if let Err((errand, error)) = self.submit(&again, by, errand) {
                self.tell(errand, Err(error));
            }
            return;
        }
        let result = outcome.map_err(Into::into);
        // It runs in the middle of somebody else's call.
        let heard = catch_unwind(AssertUnwindSafe(|| (errand.done)(result)));
        if matches!(heard, Ok(Heard::Nonsense)) {
            self.condemn("not one that our script gives");
        }
    }
}
