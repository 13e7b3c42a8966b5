//! After an attempt that several stores were asked for together, and that not enough of them granted.

use super::Wait;
use super::asking::{Next, Outage, pause};
use crate::backend::{Failure, Pause, RollbackCause};
use crate::clock::{Moment, Woken};
use crate::engine::entry::{Entry, Place, StoreOutage};
use crate::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// The bounds on the pause after several got in each other's way.
const SHORTEST_DIVIDED: Duration = Duration::from_micros(400);
const LONGEST_DIVIDED: Duration = Duration::from_millis(50);
/// How often a store that grants nothing until a known time is asked again: that may end sooner.
const PAUSE_LOOK: Duration = Duration::from_secs(1);

impl Wait<'_> {
    /// What it may have got is being given back, and its owner is used up: what to do next.
    pub(super) fn withdrawn(
        &mut self,
        place: &Place<'_>,
        entry: &Arc<Entry>,
        why: RollbackCause,
        sent: Moment,
        outage: &mut Outage,
    ) -> Result<Next, Error> {
        self.close(entry);
        self.doubt = false;
        self.owner = self.engine.new_owner();
        if let RollbackCause::Failed(error) = why {
            // What there was of it is seen to: nothing of this one can happen any more.
            return self.failed(place, Failure::NotSent(error), sent, outage);
        }
        if let RollbackCause::Paused(pause) = why {
            return self.paused(place, entry, pause, outage);
        }
        if outage.since.is_some() {
            place.set_outage(None);
            *outage = Outage::default();
        }
        match why {
            RollbackCause::Held(left) => {
                self.divided = 0;
                self.busy(place, entry, left)
            }
            _ => Ok(self.divided(place, entry, sent)),
        }
    }

    /// The store grants nothing until a time that is known. A wait that ends before says so at once, unless that may
    /// end sooner; the others are told why and until when, and wait it out.
    fn paused(
        &mut self,
        place: &Place<'_>,
        entry: &Entry,
        Pause { left, why, may_end_sooner }: Pause,
        outage: &mut Outage,
    ) -> Result<Next, Error> {
        let now = self.engine.clock.now();
        let end = now + left;
        if self.plan.deadline.is_some_and(|at| if may_end_sooner { at <= now } else { at < end }) {
            return Err(why);
        }
        self.tell_paused(entry, left, &why);
        // It begins anew each time: no limit on outages is for this.
        let ends = (!may_end_sooner).then_some(end);
        place.set_outage(Some(StoreOutage { since: now, error: why.on(&entry.name), ends }));
        *outage = Outage { since: Some(now), attempts: outage.attempts + 1 };
        let look = if may_end_sooner { pause(outage.attempts) } else { PAUSE_LOOK };
        Ok(Next::Sleep(now + left.clamp(SHORTEST_DIVIDED, look)))
    }

    /// Several asked at the same time, and nobody got enough: each waits for a moment of its own.
    fn divided(&mut self, place: &Place<'_>, entry: &Arc<Entry>, sent: Moment) -> Next {
        self.tell_contended(entry);
        let now = self.engine.clock.now();
        place.found_busy(now);
        if self.plan.deadline.is_some_and(|deadline| now >= deadline) {
            return Next::GiveUp;
        }
        // Twice what it took, so that one of them has time to get through before the next asks; doubled, so that there is
        // room for any number of them.
        let span = now.since(sent).max(SHORTEST_DIVIDED / 2) * (2 << self.divided.min(8));
        self.divided += 1;
        Next::Pause(now + span.clamp(SHORTEST_DIVIDED, LONGEST_DIVIDED).mul_f64(fastrand::f64()))
    }

    /// Lets time pass, whatever is told meanwhile; an interrupt ends it.
    pub(super) fn pause(&self, until: Moment) -> Result<(), Error> {
        let until = self.at_most(until);
        while self.engine.clock.wait(self.signal, until) == Woken::Signalled {
            self.check_interrupt()?;
        }
        Ok(())
    }
}
