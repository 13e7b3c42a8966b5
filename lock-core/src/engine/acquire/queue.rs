//! The wait in the local queue: until it is our turn to ask the store, or the lock is handed to us.

use super::Wait;
use crate::clock::{Moment, Woken};
use crate::engine::acquisition::Acquisition;
use crate::engine::entry::{Known, Place, Turn};
use crate::error::Error;
use crate::holder::Holder;
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep in the local queue without a look at who is in the way.
const LOCAL_LOOK: Duration = Duration::from_secs(1);

/// How the wait in the local queue ends.
pub(super) enum Queued {
    /// It is our turn to ask the store.
    Mine,
    /// Somebody of this client handed us the lock.
    Handed(Arc<Acquisition>),
    /// The deadline came first.
    Late,
}

impl Wait<'_> {
    /// Waits until it is our turn to ask the store, or the lock is handed to us.
    pub(super) fn queue(
        &mut self,
        place: &mut Place<'_>,
        holder: &Holder,
    ) -> Result<Queued, Error> {
        let clock = &self.engine.clock;
        // Set at the deadline, if the head's request is under way then: by when that ends.
        let mut overdue: Option<Moment> = None;
        loop {
            self.check_interrupt()?;
            let in_the_way = match place.turn(self.plan.deadline) {
                Turn::Mine if overdue.is_none() => return Ok(Queued::Mine),
                Turn::Mine => None, // too late to ask
                Turn::Handed(acquisition) => {
                    if self.is_good(place, &acquisition) {
                        return Ok(Queued::Handed(acquisition));
                    }
                    place.again(self.plan.wanted(holder, self.signal));
                    continue;
                }
                Turn::StandBack(until) => {
                    self.engine.refuse_if_forked()?;
                    let _woken: Woken = clock.wait(self.signal, until);
                    continue;
                }
                Turn::Wait(in_the_way) => in_the_way,
            };
            // Whoever is in the way may be there in the parent only, and for ever.
            self.engine.refuse_if_forked()?;
            self.tell_contended(place.entry());
            let now = clock.now();
            let give_up = place.outage_since().map(|since| self.limit(since));
            if give_up.is_some_and(|limit| now >= limit)
                && let Some(error) = place.why_not()
            {
                return self.leave(place, Err(error));
            }
            if let Some(error) = self.plan.deadline.and_then(|at| place.paused_beyond(at)) {
                return self.leave(place, Err(error));
            }
            if self.plan.deadline.is_some_and(|deadline| now >= deadline) {
                let answer = match place.known(self.plan.start, self.signal) {
                    Known::Busy => Ok(Queued::Late),
                    Known::Unavailable(error) => Err(error),
                    // A head that sleeps was told "busy", perhaps before this wait began.
                    Known::Nothing if overdue.is_none() => Ok(Queued::Late),
                    Known::Nothing => Err(unanswered()),
                    Known::By(by) => {
                        let until = *overdue.get_or_insert(by);
                        if now < until {
                            let _woken: Woken = clock.wait(self.signal, until);
                            continue;
                        }
                        Err(unanswered())
                    }
                };
                return self.leave(place, answer);
            }
            let mut until = self.at_most(now + LOCAL_LOOK);
            if let Some(limit) = give_up {
                until = until.min(limit);
            }
            if let Some(acquisition) = in_the_way {
                // The timer declares it lost at its deadline; should it come late, we look ourselves.
                if !acquisition.has_ended() && !self.engine.still_holds(place.entry(), &acquisition)
                {
                    continue;
                }
                if !acquisition.has_ended() {
                    until = until.min(acquisition.valid_until());
                }
            }
            let _woken: Woken = clock.wait(self.signal, until);
        }
    }

    /// Leaves the queue with this answer, unless the lock was handed to us in this very moment.
    fn leave(&self, place: &Place<'_>, answer: Result<Queued, Error>) -> Result<Queued, Error> {
        match place.leave() {
            Some(acquisition) if self.is_good(place, &acquisition) => {
                Ok(Queued::Handed(acquisition))
            }
            _ => answer,
        }
    }

    /// Whether what we were handed is still ours: it may have been lost while we woke up.
    fn is_good(&self, place: &Place<'_>, acquisition: &Arc<Acquisition>) -> bool {
        let is_good = self.engine.still_holds(place.entry(), acquisition);
        if !is_good {
            place.entry().end_hold(acquisition);
        }
        is_good
    }
}

/// The error of a wait whose end came while another thread's request had no answer.
fn unanswered() -> Error {
    Error::unavailable(
        "another thread of this client asks for it, and the store has not answered since this wait began",
    )
}
