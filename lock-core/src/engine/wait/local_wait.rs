//! The wait in the local queue, until this thread is the head or the lock is handed to it.

use super::Wait;
use crate::engine::acquisition::Acquisition;
use crate::engine::holder::Holder;
use crate::engine::queue::{Known, Turn, WaiterGuard};
use crate::error::Error;
use crate::time::{Moment, Woken};
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep in the local queue before the thread checks again what it waits for, so that a
/// lost wake-up costs no more than this time.
const LOCAL_LOOK: Duration = Duration::from_secs(1);

/// The result of a wait in the local queue.
pub(super) enum Queued {
    /// This thread is the head and may send attempts.
    Mine,
    /// Another thread of this client handed the lock to this one.
    Handed(Arc<Acquisition>),
    /// The deadline passed.
    Late,
}

impl Wait<'_> {
    /// Waits until this thread is the head, the lock is handed to it, or the deadline passes.
    pub(super) fn queue(
        &mut self,
        waiter: &mut WaiterGuard<'_>,
        holder: &Holder,
    ) -> Result<Queued, Error> {
        let clock = &self.engine.clock;
        // The time until which this thread waits for the answer to the head's request. Set if that
        // request is pending at this thread's deadline.
        let mut overdue: Option<Moment> = None;
        loop {
            self.check_interrupt()?;
            let in_the_way = match waiter.turn() {
                Turn::Mine if overdue.is_none() => return Ok(Queued::Mine),
                Turn::Mine => None, // send an attempt only if nothing else is known
                Turn::Handed(acquisition) => {
                    if self.is_usable(&acquisition) {
                        return Ok(Queued::Handed(acquisition));
                    }
                    waiter.requeue(self.plan.request(holder, self.signal));
                    continue;
                }
                Turn::Wait(in_the_way) => in_the_way,
            };
            // In a forked child the current holder's thread does not exist and never releases.
            self.engine.refuse_if_forked()?;
            self.tell_contended();
            let now = clock.now();
            let give_up = waiter.outage_since().map(|since| self.limit(since));
            let is_over = give_up.is_some_and(|limit| now >= limit);
            if let Some(error) = is_over.then(|| waiter.why_not()).flatten() {
                return self.leave(waiter, Err(error));
            }
            if let Some(error) = self.plan.deadline.and_then(|at| waiter.paused_beyond(at)) {
                return self.leave(waiter, Err(error));
            }
            if self.plan.is_late(now) {
                match self.answer_when_late(waiter, &mut overdue, now) {
                    Some(Ok(Queued::Mine)) => return Ok(Queued::Mine),
                    Some(answer) => return self.leave(waiter, answer),
                    None => continue,
                }
            }
            let mut until = self.plan.at_most(now + LOCAL_LOOK);
            if let Some(limit) = give_up {
                until = until.min(limit);
            }
            if let Some(acquisition) = in_the_way.filter(|it| !it.has_ended()) {
                // The timer declares the loss at the end of the validity. Check here too, in case
                // the timer is late.
                if !self.engine.still_holds(self.lock, &acquisition) {
                    continue;
                }
                until = until.min(acquisition.valid_until());
            }
            let _woken: Woken = clock.wait(self.signal, until);
        }
    }

    /// Decides the result at the deadline. Returns `None` after waiting for the head's pending
    /// request, so that the caller checks again.
    fn answer_when_late(
        &self,
        waiter: &WaiterGuard<'_>,
        overdue: &mut Option<Moment>,
        now: Moment,
    ) -> Option<Result<Queued, Error>> {
        match waiter.known(self.plan.start, self.signal) {
            Known::Busy => Some(Ok(Queued::Late)),
            Known::Unavailable(error) => Some(Err(error)),
            // The former head left the queue without an answer: its request was refused or
            // interrupted.
            Known::Nothing if overdue.is_some() && waiter.is_head() => Some(Ok(Queued::Mine)),
            // The sleeping head found the lock busy, perhaps before this wait began.
            Known::Nothing => Some(Ok(Queued::Late)),
            Known::By(by) => {
                // A head that first starts a watch sends two requests. After the deadline, wait for
                // the time of one request only.
                let most = self
                    .plan
                    .deadline
                    .map_or(by, |end| end + self.answer_time());
                let until = *overdue.get_or_insert(by.min(most));
                if now >= until {
                    return Some(Err(unanswered()));
                }
                let _woken: Woken = self.engine.clock.wait(self.signal, until);
                None
            }
        }
    }

    /// Leaves the queue with this answer, or with the lock if another thread has just handed it to
    /// this one.
    fn leave(
        &self,
        waiter: &WaiterGuard<'_>,
        answer: Result<Queued, Error>,
    ) -> Result<Queued, Error> {
        match waiter.leave() {
            Some(acquisition) if self.is_usable(&acquisition) => Ok(Queued::Handed(acquisition)),
            _ => answer,
        }
    }

    /// Returns whether a handed-off lock is still held: it may have been lost before this thread
    /// woke up. If it was lost, ends this thread's hold.
    fn is_usable(&self, acquisition: &Arc<Acquisition>) -> bool {
        let is_usable = self.engine.still_holds(self.lock, acquisition);
        if !is_usable {
            self.lock.end_hold(acquisition);
        }
        is_usable
    }
}

/// Returns the error of a wait that ended while another thread's request had no answer.
fn unanswered() -> Error {
    Error::unavailable(
        "another thread of this client asks for it, and the store has not answered since this wait \
         began",
    )
}
