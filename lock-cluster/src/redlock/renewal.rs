//! Renewals on all nodes, with requests for new votes to nodes that have none.

use super::attempt_state::{AttemptState, Outstanding, QuorumReceipt};
use super::majority::{self, NodeRenewal};
use super::node_worker::{NodeContext, Queue, is_unavailable};
use super::quorum::{Quorum, answered};
use super::responses::Responses;
use lock_core::backend::{
    AcquisitionId, Attempt, Failure, Proposal, Renewal, RenewalRequest, Tokens, contain,
};
use lock_core::{Error, Moment};
use lock_redis::quorum::Response;
use std::sync::Arc;

/// The outcome of one renewal on one node.
type NodeOutcome = Result<Response<NodeRenewal>, Failure>;

/// The responses of one node to a batch of renewals.
type Batch = Result<Vec<NodeOutcome>, Failure>;

impl Quorum {
    /// Renews a batch. Refuses a lease longer than `max_lease`, which the nodes would not refuse.
    pub(super) fn renew(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let refusals: Vec<_> = batch
            .iter()
            .map(|one| self.check_lease(one.acquisition.lease).err())
            .collect();
        let allowed = batch
            .iter()
            .zip(&refusals)
            .filter(|(_, refusal)| refusal.is_none());
        let mut renewals = self
            .renew_allowed(allowed.map(|(one, _)| one.clone()).collect(), by)
            .into_iter();
        let outcome = |refusal| match refusal {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => renewals.next().expect("one for each that was allowed"),
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
        let (sent, by) = (self.clock.now(), self.by(by));
        // Counts votes that arrived after the end of the last renewal.
        batch
            .iter()
            .filter_map(state_of)
            .for_each(|state| state.count_votes());
        let batch: Arc<[_]> = batch.into();
        let responses = Responses::of(self.workers.len());
        for worker in &self.workers {
            let (batch, requested, responses) = (
                Arc::clone(&batch),
                Arc::clone(&responses),
                Arc::clone(&responses),
            );
            let request = move |context: &NodeContext, by| {
                let (outcomes, missing) = renew_on(context, &batch, sent, by)?;
                if missing.is_empty() {
                    return Ok(outcomes);
                }
                let votes = || Ok(vote_again(context, &missing, outcomes.clone()));
                requested.put_preliminary(context.number(), Ok(outcomes.clone()), votes)
            };
            worker.ask(Queue::Renewals, by, request, move |context, response| {
                responses.put(context.number(), response);
            });
        }
        let counted = |responses: &[Option<Batch>], at: usize| {
            let one = |response: &Option<Batch>| match response.as_ref()? {
                Ok(renewals) => renewals.get(at).cloned(),
                Err(failure) => Some(Err(failure.clone())),
            };
            self.counted(&responses.iter().map(one).collect::<Vec<_>>())
        };
        let stands = |at: usize| stands(&batch[at]);
        let all_decided = |responses: &[Option<Batch>]| {
            let is_decided = |at| {
                let answers = answered(&counted(responses, at));
                majority::renewed(&answers, || stands(at), false).is_some()
            };
            (0..batch.len()).all(is_decided).then_some(())
        };
        let _all_decided = responses.wait(self.clock.as_ref(), by, all_decided);
        let outcomes = responses.read(|responses| {
            (0..batch.len())
                .map(|at| counted(responses, at))
                .collect::<Vec<_>>()
        });
        batch
            .iter()
            .zip(outcomes)
            .map(|(one, outcomes)| self.decide(one, &outcomes))
            .collect()
    }

    /// Decides a renewal by its outcomes on the nodes.
    fn decide(
        &self,
        one: &RenewalRequest,
        outcomes: &[Option<Result<NodeRenewal, Failure>>],
    ) -> Result<Renewal, Failure> {
        let state = state_of(one);
        // Counted before the decision, because new votes count only while the older ones are a
        // majority, and the lease of an older vote may end meanwhile.
        state.inspect(|state| state.count_votes());
        let decided = majority::renewed(&answered(outcomes), || stands(one), true);
        if let (Some(Renewal::Gone), Some(state)) = (decided, state) {
            self.release_rest(state);
        }
        decided.ok_or_else(|| {
            let has_none = |outcome: &Option<_>| match outcome {
                Some(Ok(NodeRenewal::Missing)) => Some(Err(Failure::Refused(no_vote()))),
                outcome => outcome.clone(),
            };
            self.undecided(
                "renewed it",
                &outcomes.iter().map(has_none).collect::<Vec<_>>(),
            )
        })
    }

    /// Releases a lost lock on the nodes that still have it, including nodes that voted again.
    fn release_rest(&self, state: &Arc<AttemptState>) {
        let Outstanding {
            granted, unknown, ..
        } = state.abandon();
        let rest = [granted, unknown].concat();
        // Passed as `unknown`, so that no response is awaited.
        self.roll_back_on_nodes(
            state,
            &Outstanding {
                unknown: rest,
                ..Outstanding::default()
            },
        );
    }
}

fn state_of(one: &RenewalRequest) -> Option<&Arc<AttemptState>> {
    one.acquisition
        .receipt
        .get::<QuorumReceipt>()
        .map(|receipt| &receipt.0)
}

fn stands(one: &RenewalRequest) -> bool {
    state_of(one).is_some_and(|state| state.stands())
}

fn no_vote() -> Error {
    Error::unavailable("it does not have the lock, and does not vote for it now")
}

/// Renews a batch on one node. Also returns the locks for which the node has no vote, but may be
/// asked for a new one.
fn renew_on<'a>(
    context: &NodeContext,
    batch: &'a [RenewalRequest],
    sent: Moment,
    by: Moment,
) -> Result<(Vec<NodeOutcome>, Vec<MissingVote<'a>>), Failure> {
    let at = context.number();
    let on_node = |one: &RenewalRequest| {
        let mut one = one.clone();
        one.acquisition.receipt = state_of(&one)
            .map(|state| state.receipt(at))
            .unwrap_or_default();
        one
    };
    let renewals = context
        .node()
        .renew(&batch.iter().map(on_node).collect::<Vec<_>>(), by);
    // A node that answered none of the renewals counts as one that did not answer the batch.
    if let Some(Err(failure)) = renewals.first()
        && renewals.iter().all(is_unavailable)
    {
        return Err(failure.clone());
    }
    let mut missing = Vec::new();
    let outcome = |(place, renewal): (usize, Result<Response<Renewal>, Failure>)| {
        let Response { what, from } = renewal?;
        let one = &batch[place];
        let what = match (what, state_of(one)) {
            (Renewal::Gone, Some(state)) => {
                let is_durable = context.node().is_durable();
                if let Some(proposal) = state.plan_vote(at, from.as_deref(), is_durable) {
                    missing.push(MissingVote {
                        place,
                        one,
                        state,
                        proposal,
                    });
                }
                NodeRenewal::Missing
            }
            (Renewal::Gone, None) => NodeRenewal::Missing,
            (_, Some(state)) => {
                let until = sent + one.acquisition.lease.validity();
                state.note_extended(at, from.clone(), until)
            }
            (_, None) => NodeRenewal::Extended,
        };
        Ok(Response { what, from })
    };
    let outcomes = renewals.into_iter().enumerate().map(outcome).collect();
    Ok((outcomes, missing))
}

/// A lock for which a node has no vote.
struct MissingVote<'a> {
    /// The position in the batch.
    place: usize,
    one: &'a RenewalRequest,
    state: &'a Arc<AttemptState>,
    proposal: Option<Proposal>,
}

/// Requests new votes for these locks from the node. Returns the outcomes with those votes.
fn vote_again(
    context: &NodeContext,
    missing: &[MissingVote<'_>],
    mut outcomes: Vec<NodeOutcome>,
) -> Vec<NodeOutcome> {
    let (at, sent) = (context.number(), context.now());
    let attempts: Vec<_> = missing.iter().map(MissingVote::attempt).collect();
    // All outcomes come from one node, which has answered just now.
    let view = outcomes[missing[0].place]
        .as_ref()
        .ok()
        .and_then(|outcome| outcome.from.clone());
    // The node has its whole time-out for the answer, even if this renewal ends before: a vote that
    // arrives later counts in the next renewal.
    let votes = contain(|| {
        context
            .node()
            .vote_again(&attempts, view.as_deref(), context.by())
    });
    let mut votes = votes.unwrap_or_default();
    votes.resize_with(missing.len(), || Err(Failure::Unknown(no_vote())));
    for (it, vote) in missing.iter().zip(votes) {
        let until = sent + it.one.acquisition.lease.validity();
        if it.state.note_vote(at, view.clone(), until, &vote) {
            it.state.roll_back_on(context);
        } else if let (Ok(Some(_)), Ok(outcome)) = (vote, &mut outcomes[it.place]) {
            outcome.what = NodeRenewal::Voted;
        }
    }
    outcomes
}

impl MissingVote<'_> {
    fn attempt(&self) -> (Attempt<'_>, Option<Proposal>) {
        let AcquisitionId {
            name, owner, lease, ..
        } = &self.one.acquisition;
        (
            Attempt::new(name, *owner, *lease).tokens(Tokens::None),
            self.proposal,
        )
    }
}
