//! The confirmations of a mutant's simulated replicas.

use super::backend::MutantBackend;
use super::mutation::Mutation;
use super::store::COUNT;
use crate::scale::ms;
use lock_core::backend::{Answer, Attempt, Failure, Renewal, RenewalRequest};
use lock_core::{Error, InsufficientReplicas, Moment, Replicas, Replication};

impl MutantBackend {
    /// Waits for the confirmations of an attempt, and returns its answer.
    pub(super) fn confirm(
        &self,
        attempt: &Attempt<'_>,
        answer: Answer,
        is_repeated: bool,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let policy = attempt.replication;
        let needed = self.needed(policy);
        let is_asked = matches!(answer, Answer::Granted(_)) && needed > 0;
        if !is_asked && !self.has(Mutation::BusyNeedsReplicas) {
            self.await_needlessly(by);
            return Ok(answer);
        }
        let count = self.confirmations(needed, policy, by);
        let insufficient = InsufficientReplicas::new(count, needed);
        match (answer, self.mutation) {
            (answer, _) if count >= needed => Ok(answer),
            (answer @ Answer::Granted(_), Some(Mutation::InsufficientReplicasUnreported)) => {
                Ok(answer)
            }
            (answer @ Answer::Granted(_), Some(Mutation::ResendNotConfirmed)) if is_repeated => {
                Ok(answer)
            }
            (Answer::Granted(_), Some(Mutation::InsufficientReplicasIsBusy)) => {
                Ok(Answer::Busy(None))
            }
            (Answer::Granted(grant), _) => {
                self.remember_unconfirmed(attempt);
                Ok(Answer::Unacknowledged(grant, insufficient))
            }
            (_, _) => Err(Failure::Unknown(Error::unavailable("too few replicas"))),
        }
    }

    /// Waits for the confirmations of renewals, and returns their answers. `changed` says for each
    /// renewal whether it wrote anything.
    pub(super) fn confirm_renewals(
        &self,
        batch: &[RenewalRequest],
        renewals: Vec<Renewal>,
        changed: &[bool],
        by: Moment,
    ) -> Vec<Renewal> {
        let needs: Vec<_> = batch
            .iter()
            .map(|one| self.needed(one.replication))
            .collect();
        let most = needs.iter().copied().max().unwrap_or(0);
        let longest = batch
            .iter()
            .map(|one| one.replication)
            .max_by_key(Replication::time);
        if most == 0 || self.has(Mutation::RenewalUnconfirmed) {
            self.await_needlessly(by);
            return renewals;
        }
        let count = self.confirmations(most, longest.unwrap_or_default(), by);
        let weighed = |(at, renewal): (usize, Renewal)| {
            let shared = self.has(Mutation::BatchSharesItsPolicy);
            let needed = if shared { most } else { needs[at] };
            let is_trusted = self.has(Mutation::UnchangedRenewalNotConfirmed) && !changed[at];
            match renewal {
                Renewal::Extended if count < needed && !is_trusted => {
                    Renewal::Unacknowledged(InsufficientReplicas::new(count, needed))
                }
                renewal => renewal,
            }
        };
        renewals.into_iter().enumerate().map(weighed).collect()
    }

    fn needed(&self, policy: Replication) -> u32 {
        match policy.count() {
            Replicas::Off => 0,
            Replicas::AtLeast(count) => count,
            Replicas::All if self.has(Mutation::AllMeansConfirmingReplicas) => {
                self.with(|state, _| state.replicate().max(1))
            }
            _ => COUNT,
        }
    }

    /// Returns the number of confirming replicas, as soon as they are enough, or the time of the
    /// policy or the deadline `by` has passed.
    fn confirmations(&self, needed: u32, policy: Replication, by: Moment) -> u32 {
        let now = self.clock.now();
        let until = match self.mutation {
            Some(Mutation::ConfirmsUnasked) => return needed,
            Some(Mutation::CountsConnectedReplicas) => return COUNT,
            Some(Mutation::ReplicaTimeoutIgnored) => now,
            Some(Mutation::ReplicasAwaitedBeyondDeadline) => now + policy.time(),
            _ => (now + policy.time()).min(by),
        };
        loop {
            let count = self.with(|state, _| state.replicate());
            if count >= needed || self.clock.now() >= until {
                return count;
            }
            self.pause();
        }
    }

    fn await_needlessly(&self, by: Moment) {
        if self.has(Mutation::AlwaysAsksReplicas) {
            self.confirmations(COUNT, Replication::all().timeout(ms(1_000)), by);
        }
    }

    fn remember_unconfirmed(&self, attempt: &Attempt<'_>) {
        if self.has(Mutation::UnconfirmedStays) {
            let holding = (self.key(attempt.name), attempt.owner);
            self.with(|state, _| state.unconfirmed.insert(holding));
        }
    }
}
