//! The wait in the local queue: until it is our turn to ask the store, or the lock is handed to us.

use super::Wait;
use crate::engine::acquisition::Acquisition;
use crate::engine::holder::Holder;
use crate::engine::queue::{Known, Turn, WaiterGuard};
use crate::error::Error;
use crate::time::{Moment, Woken};
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep in the local queue without a check of the obstacle, so that a lost message
/// costs time and never correctness.
const LOCAL_LOOK: Duration = Duration::from_secs(1);

/// How the wait in the local queue ends.
pub(super) enum Queued {
    /// It is our turn to ask the store.
    Mine,
    /// Another thread of this client handed us the lock.
    Handed(Arc<Acquisition>),
    /// The deadline came first.
    Late,
}

impl Wait<'_> {
    /// Waits until it is our turn to ask the store, or the lock is handed to us.
    pub(super) fn queue(
        &mut self,
        waiter: &mut WaiterGuard<'_>,
        holder: &Holder,
    ) -> Result<Queued, Error> {
        let clock = &self.engine.clock;
        // Set at the deadline, if the head's request is under way then: by when that ends.
        let mut overdue: Option<Moment> = None;
        loop {
            self.check_interrupt()?;
            let in_the_way = match waiter.turn(self.plan.deadline) {
                Turn::Mine if overdue.is_none() => return Ok(Queued::Mine),
                Turn::Mine => None, // asks only if nothing else is known
                Turn::Handed(acquisition) => {
                    if self.is_usable(&acquisition) {
                        return Ok(Queued::Handed(acquisition));
                    }
                    waiter.requeue(self.plan.request(holder, self.signal));
                    continue;
                }
                Turn::StandBack(until) => {
                    self.engine.refuse_if_forked()?;
                    let _woken: Woken = clock.wait(self.signal, until);
                    continue;
                }
                Turn::Wait(in_the_way) => in_the_way,
            };
            // The thread in the way may be there in the parent only, and for ever.
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
                // The timer declares it lost at its deadline; should it come late, we look.
                if !self.engine.still_holds(self.lock, &acquisition) {
                    continue;
                }
                until = until.min(acquisition.valid_until());
            }
            let _woken: Woken = clock.wait(self.signal, until);
        }
    }

    /// What is known at the deadline. `None`: it waited for the end of the head's request, and is
    /// to look again.
    fn answer_when_late(
        &self,
        waiter: &WaiterGuard<'_>,
        overdue: &mut Option<Moment>,
        now: Moment,
    ) -> Option<Result<Queued, Error>> {
        match waiter.known(self.plan.start, self.signal) {
            Known::Busy => Some(Ok(Queued::Late)),
            Known::Unavailable(error) => Some(Err(error)),
            // The head that was waited for has left, refused or interrupted, and said nothing.
            Known::Nothing if overdue.is_some() && waiter.is_head() => Some(Ok(Queued::Mine)),
            // A head that sleeps was told "busy", perhaps before this wait began.
            Known::Nothing => Some(Ok(Queued::Late)),
            Known::By(by) => {
                // A head that watches first has two answers to come: one is waited for.
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

    /// Leaves the queue with this answer, unless the lock was handed to us in this very moment.
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

    /// Whether what we were handed is still ours: it may have been lost while we woke up.
    fn is_usable(&self, acquisition: &Arc<Acquisition>) -> bool {
        let is_usable = self.engine.still_holds(self.lock, acquisition);
        if !is_usable {
            self.lock.end_hold(acquisition);
        }
        is_usable
    }
}

/// The error of a wait whose end came while another thread's request had no answer.
fn unanswered() -> Error {
    Error::unavailable(
        "another thread of this client asks for it, and the store has not answered since this wait \
         began",
    )
}
