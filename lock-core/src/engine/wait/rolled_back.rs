//! The reaction to [`Answer::Retry`](crate::backend::Answer::Retry): an attempt that the store
//! rolled back or could not decide.

use super::Wait;
use super::attempt::Next;
use crate::backend::{Failure, RetryCause};
use crate::engine::queue::{StoreOutage, WaiterGuard};
use crate::error::Error;
use crate::time::Moment;
use std::time::Duration;

/// The smallest upper limit of the random pause after a split vote. The limit is twice the time of
/// the attempt, and doubles with each further split vote, so that one client succeeds before the
/// next tries.
const SHORTEST_SPLIT_VOTE: Duration = Duration::from_micros(400);
/// The largest upper limit of the random pause after a split vote, so that a free lock does not
/// idle for longer.
const LONGEST_SPLIT_VOTE: Duration = Duration::from_millis(50);
/// The longest time between two queries of a store that grants nothing until a known time, because
/// an operator may end that pause early.
const PAUSE_LOOK: Duration = Duration::from_secs(1);

impl Wait<'_> {
    /// Cleans up after the attempts of the present owner ID, and continues with a new owner ID.
    pub(super) fn change_owner(&mut self) {
        self.close(false);
        self.unknown_outcome = false;
        self.unconfirmed = None;
        self.owner = self.engine.new_owner();
    }

    /// Decides the next action after an attempt that granted nothing for this cause.
    pub(super) fn retry(
        &mut self,
        waiter: &WaiterGuard<'_>,
        cause: RetryCause,
        after: Option<Duration>,
        sent: Moment,
    ) -> Result<Next, Error> {
        match cause {
            // The rollback of the former owner is queued, so no outcome is unknown, as if the
            // attempt had not been sent.
            RetryCause::Failed(error) => self.failed(waiter, Failure::NotSent(error), sent),
            RetryCause::Paused {
                why,
                may_end_sooner,
            } => self.paused(waiter, after.unwrap_or_default(), why, may_end_sooner),
            RetryCause::Held => {
                self.end_outage(waiter);
                self.split_votes = 0;
                self.busy(waiter, after)
            }
            RetryCause::SplitVote => {
                self.end_outage(waiter);
                Ok(self.split_vote(waiter, sent))
            }
        }
    }

    /// Handles a store that grants nothing until a known time. A wait whose deadline is before that
    /// time fails at once; if the pause may end at any time, it fails only at its deadline. Other
    /// waits emit an event and sleep.
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
        // Each pause begins a new outage, so that the outage limit does not end the wait.
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

    /// Handles a split vote: each client pauses for a different random time.
    fn split_vote(&mut self, waiter: &WaiterGuard<'_>, sent: Moment) -> Next {
        self.tell_contended();
        let now = self.engine.clock.now();
        waiter.found_busy(now);
        if self.plan.is_late(now) {
            return Next::GiveUp;
        }
        // The limit is twice the duration of the attempt, so that one client can succeed before the
        // next one tries. It doubles each time, so that this works for any number of clients.
        let took = now.since(sent).max(SHORTEST_SPLIT_VOTE / 2);
        let span = took * (2 << self.split_votes.min(8));
        self.split_votes += 1;
        let span = span.clamp(SHORTEST_SPLIT_VOTE, LONGEST_SPLIT_VOTE);
        Next::Pause(now + span.mul_f64(fastrand::f64()))
    }
}
