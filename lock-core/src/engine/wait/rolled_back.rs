//! After an attempt that the store answered with a cause to retry it.

use super::Wait;
use super::attempt::Next;
use crate::backend::{Failure, FoundBusyBy, RetryCause};
use crate::engine::queue::{StoreOutage, WaiterGuard};
use crate::error::Error;
use crate::time::Moment;
use std::time::Duration;

/// The shortest pause after a split vote: up to twice the time of the attempt, at random and
/// doubled, so that one client succeeds before the next tries.
const SHORTEST_SPLIT_VOTE: Duration = Duration::from_micros(400);
/// The longest such pause, so that a free lock does not idle for longer.
const LONGEST_SPLIT_VOTE: Duration = Duration::from_millis(50);
/// The longest time between two queries of a store that grants nothing until a known time, because
/// an operator may end that pause early.
const PAUSE_LOOK: Duration = Duration::from_secs(1);

impl Wait<'_> {
    /// What the last attempt got is being released: its owner is not used again.
    pub(super) fn change_owner(&mut self) {
        self.close();
        self.unknown_outcome = false;
        self.owner = self.engine.new_owner();
    }

    /// What to do after this cause.
    pub(super) fn retry(
        &mut self,
        waiter: &WaiterGuard<'_>,
        cause: RetryCause,
        after: Option<Duration>,
        sent: Moment,
    ) -> Result<Next, Error> {
        match cause {
            // The rollback is queued: nothing of this owner can happen any more.
            RetryCause::Failed(error) => self.failed(waiter, Failure::NotSent(error), sent),
            RetryCause::Paused {
                why,
                may_end_sooner,
            } => self.paused(waiter, after.unwrap_or_default(), why, may_end_sooner),
            RetryCause::Held => {
                self.end_outage(waiter);
                self.split_votes = 0;
                self.busy(waiter, after, FoundBusyBy::Attempt)
            }
            RetryCause::SplitVote => {
                self.end_outage(waiter);
                Ok(self.split_vote(waiter, sent))
            }
        }
    }

    /// The store grants nothing until a time that is known. A wait that ends before says so at
    /// once, unless that may end sooner; the others are told why and until when, and wait it out.
    fn paused(
        &mut self,
        waiter: &WaiterGuard<'_>,
        left: Duration,
        why: Error,
        may_end_sooner: bool,
    ) -> Result<Next, Error> {
        let now = self.engine.clock.now();
        let end = now + left;
        if self
            .plan
            .deadline
            .is_some_and(|at| if may_end_sooner { at <= now } else { at < end })
        {
            return Err(why);
        }
        self.tell_paused(left, &why);
        // It begins anew each time: no limit on outages is for this.
        let ends = (!may_end_sooner).then_some(end);
        let error = why.on(&self.lock.name);
        self.has_outage(
            waiter,
            StoreOutage {
                since: now,
                error,
                ends,
            },
        );
        self.outage.since = Some(now);
        let look = if may_end_sooner {
            self.outage.backoff.next()
        } else {
            PAUSE_LOOK
        };
        Ok(Next::Sleep(now + left.clamp(SHORTEST_SPLIT_VOTE, look)))
    }

    /// Several asked at the same time, and none got enough: each waits for a moment of its own.
    fn split_vote(&mut self, waiter: &WaiterGuard<'_>, sent: Moment) -> Next {
        self.tell_contended();
        let now = self.engine.clock.now();
        waiter.found_busy(now);
        if self.plan.is_late(now) {
            return Next::GiveUp;
        }
        // Twice what it took, so that one of them has time to get through before the next asks;
        // doubled, so that there is room for any number of them.
        let took = now.since(sent).max(SHORTEST_SPLIT_VOTE / 2);
        let span = took * (2 << self.split_votes.min(8));
        self.split_votes += 1;
        let span = span.clamp(SHORTEST_SPLIT_VOTE, LONGEST_SPLIT_VOTE);
        Next::Pause(now + span.mul_f64(fastrand::f64()))
    }
}
