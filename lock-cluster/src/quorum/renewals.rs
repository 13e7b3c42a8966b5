//! Many renewals at once on all nodes: each of them is extended where a majority is.

use super::attempt::Held;
use super::backend::{Quorum, answered};
use super::gathering::Gathering;
use super::member::Reply;
use super::seat::{Core, Task};
use super::tally;
use lock_core::Moment;
use lock_core::backend::{Failure, Renewal, RenewalRequest};
use std::sync::Arc;

/// What one node came to, with an answer for each renewal.
type Batch = Result<Vec<Result<Reply<Renewal>, Failure>>, Failure>;

impl Quorum {
    /// Renews these. A lease beyond the terms is refused before any node hears of it, which would keep the lock for so
    /// long whatever the caller is told.
    pub(super) fn renew(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let refusals: Vec<_> =
            batch.iter().map(|one| self.refuse_beyond_terms(one.acquisition.lease).err()).collect();
        let allowed = batch.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none());
        let mut renewals = self.renew_allowed(allowed.map(|(one, _)| one.clone()).collect(), by);
        // From the front, as they were asked.
        renewals.reverse();
        let outcome = |refusal| match refusal {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => renewals.pop().expect("one for each that was allowed"),
        };
        refusals.into_iter().map(outcome).collect()
    }

    fn renew_allowed(
        &self,
        batch: Vec<RenewalRequest>,
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        if batch.is_empty() {
            return Vec::new();
        }
        let ballots: Vec<_> = batch
            .iter()
            .map(|one| one.acquisition.receipt.get::<Held>().map(|held| Arc::clone(&held.0)))
            .collect();
        let count = batch.len();
        let asked: Arc<[_]> = batch.into_iter().zip(ballots).collect();
        let question = move |core: &Core, by| {
            let there = asked.iter().map(|(one, ballot)| {
                let mut one = one.clone();
                one.acquisition.receipt =
                    ballot.as_ref().map(|it| it.receipt(core.number())).unwrap_or_default();
                one
            });
            let there: Vec<_> = there.collect();
            Ok(core.member().renew(&there, by))
        };
        let by = self.by(by);
        let gathering = Gathering::of(self.seats.len());
        for seat in &self.seats {
            let gathering = Arc::clone(&gathering);
            seat.ask(Task::Renewal, by, question.clone(), move |core, answer| {
                gathering.put(core.number(), answer);
            });
        }
        let counted = |answers: &[Option<Batch>], at| {
            self.roll.counted(&of_one(answers, at), self.clock.now())
        };
        let is_decided = |answers: &[Option<Batch>]| {
            let decided = |at| tally::renewed(&answered(&counted(answers, at))).is_some();
            (0..count).all(decided).then_some(())
        };
        let _all_decided = gathering.wait(self.clock.as_ref(), by, is_decided);
        gathering.look(|answers| {
            let renewal = |at: usize| {
                let answers = counted(answers, at);
                tally::renewed(&answered(&answers))
                    .ok_or_else(|| self.undecided("renewed it", &answers))
            };
            (0..count).map(renewal).collect()
        })
    }
}

/// What all nodes said to one of the renewals.
fn of_one(answers: &[Option<Batch>], at: usize) -> Vec<Option<Result<Reply<Renewal>, Failure>>> {
    let of_node = |answer: &Option<Batch>| match answer.as_ref()? {
        Ok(answers) => answers.get(at).cloned(),
        Err(failure) => Some(Err(failure.clone())),
    };
    answers.iter().map(of_node).collect()
}
