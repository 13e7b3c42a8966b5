//! The wait in the local queue: until it is our turn to ask the store, or the lock is handed to us.

use super::Wait;
use crate::clock::Woken;
use crate::engine::entry::{Place, Turn};
use crate::engine::tenure::Tenure;
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
    Handed(Arc<Tenure>),
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
        loop {
            self.check_interrupt()?;
            let in_the_way = match place.turn(self.plan.deadline) {
                Turn::Mine => return Ok(Queued::Mine),
                Turn::Handed(tenure) => {
                    if self.is_good(place, &tenure) {
                        return Ok(Queued::Handed(tenure));
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
            if self.plan.deadline.is_some_and(|deadline| now >= deadline) {
                let why_not = place.why_not();
                if let Some(tenure) = place.leave()
                    && self.is_good(place, &tenure)
                {
                    return Ok(Queued::Handed(tenure));
                }
                // Nobody of this client could ask: that is not "busy".
                return why_not.map_or(Ok(Queued::Late), Err);
            }
            let mut until = self.at_most(now + LOCAL_LOOK);
            if let Some(tenure) = in_the_way {
                // The timer declares it lost at its deadline; should it come late, we look ourselves.
                if !tenure.has_ended() && !self.engine.still_holds(place.entry(), &tenure) {
                    continue;
                }
                if !tenure.has_ended() {
                    until = until.min(tenure.valid_until());
                }
            }
            let _woken: Woken = clock.wait(self.signal, until);
        }
    }

    /// Whether what we were handed is still ours: it may have been lost while we woke up.
    fn is_good(&self, place: &Place<'_>, tenure: &Arc<Tenure>) -> bool {
        let is_good = self.engine.still_holds(place.entry(), tenure);
        if !is_good {
            place.entry().end_hold(tenure);
        }
        is_good
    }
}
