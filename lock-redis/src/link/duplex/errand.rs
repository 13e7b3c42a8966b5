//! Requests that nobody waits for: how they leave, who reads their answers, and how those are told.

use super::line::{Aftermath, Line, MayHaveLeft, Outcome};
use super::{Duplex, Errand, Heard};
use crate::link::{CallError, with_text};
use crate::reply::Reply;
use lock_core::Moment;
use parking_lot::MutexGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
        drop(self.write_for_all(line));
        Ok(())
    }

    /// Writes what is to be written. What the peer does not take at once is left to somebody who waits: nobody who is awake
    /// would see to it.
    fn write_for_all<'a>(&'a self, mut line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        if line.wants_writer() {
            line = self.write(line);
        }
        let mut after = Aftermath::default();
        if line.wants_writer() && (line.reader.is_none() || line.asleep) {
            line.wake_a_writer(&mut after);
        }
        self.conclude(line, after)
    }

    /// Reads, without waiting, what has come for those who do not wait; and gives up those whose time has come. Whether
    /// any are left.
    pub(super) fn collect(&self) -> bool {
        let mut line = self.line.lock();
        let mut after = Aftermath::default();
        line.give_up_errands(self.clock.now(), &self.server, &mut after);
        line = self.write_for_all(self.conclude(line, after));
        if line.has_errands() && line.reader.is_none() {
            line = self.look(line);
        }
        line.has_errands()
    }

    pub(in crate::link) fn has_errands(&self) -> bool {
        self.line.lock().has_errands()
    }

    /// `by` is when it is given up: what is sent once more is given no more time than it had.
    pub(super) fn tell(&self, mut errand: Errand, by: Moment, mut outcome: Outcome) {
        if let Ok(Reply::Error(error)) = &outcome
            && error.is_noscript()
            && !errand.by_hash.is_empty()
        {
            let again = with_text(&std::mem::take(&mut errand.by_hash), errand.text);
            let sent = if self.clock.now() < by {
                self.submit(&again, by, errand)
            } else {
                Err((errand, self.too_late(MayHaveLeft(false))))
            };
            match sent {
                Ok(()) => return,
                Err((unsent, error)) => (errand, outcome) = (unsent, Err(error)),
            }
        }
        let result = outcome.map_err(Into::into);
        // It runs in the middle of somebody else's call.
        let heard = catch_unwind(AssertUnwindSafe(|| (errand.done)(result)));
        if matches!(heard, Ok(Heard::Nonsense)) {
            self.condemn("not one that our script gives");
        }
    }
}
