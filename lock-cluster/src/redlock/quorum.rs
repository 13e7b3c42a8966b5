//! [`Quorum`]: the nodes of a quorum, and the requests that go to all of them.

use super::attempt_state::{AttemptState, QuorumReceipt};
use super::membership::Membership;
use super::node::{QuorumNode, QuorumTerms, RedisNode};
use super::node_worker::{NodeContext, NodeWorker, Queue};
use super::reports::QuorumReports;
use super::responses::Responses;
use super::token::TokenProposals;
use lock_core::backend::{
    Abilities, AcquisitionId, Backoff, Failure, Receipt, Release, ReleaseOptions, Tombstone,
};
use lock_core::{Clock, Context, Error, LeaseTime, MemberOutcome, Moment, Signal};
use lock_redis::quorum::Response;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The pauses between requested updates of the membership that change nothing. They grow to four
/// seconds only, because an emptied server should not wait long to become a node.
const BETWEEN_UPDATES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));

/// The state that the backend, its attempts and its watches share.
pub(super) struct Quorum {
    pub(super) workers: Vec<NodeWorker>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) proposals: TokenProposals,
    node_timeout: Duration,
    pub(super) abilities: Abilities,
    pub(super) membership: Arc<Membership>,
    /// The settings by which the servers of this quorum vote; `None` if the nodes are stores of
    /// another kind.
    pub(super) terms: Option<QuorumTerms>,
    /// The time of the first attempt at which no server had become a member of a new quorum. `None`
    /// before such an attempt, and after an attempt that found a member.
    pub(super) starting: Mutex<Option<Moment>>,
    pub(super) update: Mutex<UpdateState>,
    /// Raised when a background update ends.
    pub(super) update_ended: Arc<Signal>,
    /// The ID of this client. The servers record it with each member that this client cannot reach.
    pub(super) client: Arc<str>,
    pub(super) reports: QuorumReports,
}

/// The state of the background update of the members.
pub(super) struct UpdateState {
    pub(super) is_running: bool,
    /// The earliest start of the next requested update.
    pub(super) not_before: Moment,
    /// The pauses after consecutive requested updates that changed nothing.
    pub(super) backoff: Backoff,
    /// The time at which the servers are surveyed even if no update was requested. `None` before
    /// the first call of `update_in_background`.
    pub(super) next_survey: Option<Moment>,
}

impl Quorum {
    /// Creates a quorum of nodes that [qualify](super::backend), each of which has `node_timeout`
    /// for every answer.
    pub(super) fn new(nodes: Vec<QuorumNode>, node_timeout: Duration, context: &Context) -> Self {
        let clock = &context.clock;
        let abilities = || nodes.iter().map(QuorumNode::abilities);
        let tokens = abilities().all(|abilities| abilities.tokens);
        let first_renewal = abilities().filter_map(|it| it.first_renewal).min();
        let server = nodes.iter().find_map(QuorumNode::server);
        let terms = server.map(|server| *server.terms());
        let membership = Membership::new(
            nodes.iter().map(|node| node.name().to_owned()).collect(),
            server.map(RedisNode::marker_key).unwrap_or_default(),
            terms.map(|terms| terms.max_lease).unwrap_or_default(),
        );
        let worker = |(at, node)| NodeWorker::new(at, node, Arc::clone(clock), node_timeout);
        Self {
            workers: nodes.into_iter().enumerate().map(worker).collect(),
            clock: Arc::clone(clock),
            proposals: TokenProposals::default(),
            node_timeout,
            abilities: Abilities::full()
                .tokens(tokens)
                .first_renewal(first_renewal)
                .longest_lease(terms.map(|terms| terms.max_lease)),
            membership: Arc::new(membership),
            terms,
            starting: Mutex::new(None),
            update: Mutex::new(UpdateState {
                is_running: false,
                not_before: Moment::from_nanos(0),
                backoff: BETWEEN_UPDATES,
                next_survey: None,
            }),
            update_ended: Arc::default(),
            client: context.client.to_string().into(),
            reports: QuorumReports::new(context.notices.clone()),
        }
    }

    /// Returns the time that a node has for an answer.
    pub(super) fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// Returns the deadline of requests that are sent now: at most `by`.
    pub(super) fn by(&self, by: Moment) -> Moment {
        by.min(self.clock.now() + self.node_timeout)
    }

    /// Refuses a lease longer than `max_lease`. A restarted node may have forgotten a lock, and
    /// votes again after `max_lease`. It could then vote for another owner before a longer lease
    /// ends.
    pub(super) fn check_lease(&self, lease: LeaseTime) -> Result<(), Error> {
        match self.terms {
            Some(QuorumTerms { max_lease, .. }) if lease.duration() > max_lease => {
                Err(Error::misuse(format!(
                    "a lease of {lease} is longer than any that this quorum grants: \
                     max_lease={max_lease:?}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Sends a request to every node, without waiting for answers.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        queue: Queue,
        by: Moment,
        request: impl Fn(&NodeContext, Moment) -> Result<T, Failure> + Clone + Send + 'static,
    ) -> Arc<Responses<Result<T, Failure>>> {
        let responses = Responses::of(self.workers.len());
        for worker in &self.workers {
            let responses = Arc::clone(&responses);
            worker.ask(queue, by, request.clone(), move |context, response| {
                responses.put(context.number(), response);
            });
        }
        responses
    }

    pub(super) fn counted<T: Clone>(
        &self,
        responses: &[Option<Result<Response<T>, Failure>>],
    ) -> Vec<Option<Result<T, Failure>>> {
        self.membership.counted(responses, self.clock.now())
    }

    /// Returns the failure of a request that the answers do not decide. It is refused if all nodes
    /// refused the request or did not get it, otherwise unknown.
    pub(super) fn undecided<T>(
        &self,
        what: &str,
        answers: &[Option<Result<T, Failure>>],
    ) -> Failure {
        let outcomes = answers.iter().map(|answer| match answer {
            Some(Ok(_)) => MemberOutcome::Done,
            Some(Err(failure)) => MemberOutcome::Failed(failure.error().clone()),
            None => MemberOutcome::Failed(Error::unavailable("no answer in time")),
        });
        let error = self.unavailable(what, outcomes.collect());
        let is_refused = |answer: &Option<Result<T, Failure>>| {
            matches!(answer, Some(Err(Failure::Refused(_) | Failure::NotSent(_))))
        };
        if answers.iter().all(is_refused) {
            Failure::Refused(error)
        } else {
            Failure::Unknown(error)
        }
    }

    /// Sends a release to every node that may hold the lock, and calls `each` with the outcome for
    /// every node. This thread sends the release to idle nodes itself if `waits` is false, the
    /// acquisition has a receipt, and `options` request no tombstone.
    pub(super) fn send_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        waits: bool,
        each: impl Fn(usize, Result<Release, Failure>) + Clone + Send + 'static,
    ) {
        self.proposals
            .released(&acquisition.name, acquisition.owner, options.last_used);
        let receipt = acquisition.receipt.get::<QuorumReceipt>();
        let state = receipt.map(|receipt| Arc::clone(&receipt.0));
        for worker in &self.workers {
            let (acquisition, each) = (acquisition.clone(), each.clone());
            if let Some(state) = &state
                && !waits
                && options.tombstone == Tombstone::None
                && worker.is_idle()
            {
                submit_release(worker.context(), state, &acquisition, options, by, each);
                continue;
            }
            let (state, before, late) = (state.clone(), state.clone(), acquisition.clone());
            let known =
                move |context: &NodeContext| before?.plan_release(context.number(), options).err();
            let request = move |context: &NodeContext, by| match &state {
                Some(state) => state.release_on(context, &acquisition, options, by),
                // There is no receipt, so an attempt without an answer may have been granted on any
                // node.
                None => context.release(&acquisition, ReleaseOptions::WITH_TOMBSTONE, by),
            };
            worker.ask_unless(
                Queue::Attempts,
                by,
                known,
                request,
                move |context, outcome| {
                    if matches!(&outcome, Err(Failure::NotSent(_))) {
                        let AcquisitionId {
                            name, owner, lease, ..
                        } = late;
                        let late = AcquisitionId::new(name, owner, lease, Receipt::default());
                        context.release_later(late, options.kept);
                    }
                    each(context.number(), outcome);
                },
            );
        }
    }
}

/// Releases the lock on one node without waiting for the answer.
fn submit_release(
    context: &Arc<NodeContext>,
    state: &Arc<AttemptState>,
    acquisition: &AcquisitionId,
    options: ReleaseOptions,
    by: Moment,
    each: impl Fn(usize, Result<Release, Failure>) + Send + 'static,
) {
    let at = context.number();
    let options = match state.plan_release(at, options) {
        Ok(options) => options,
        Err(known) => return each(at, Ok(known)),
    };
    let acquisition = state.with_receipt(acquisition, at);
    let (later, state, kept) = (Arc::clone(context), Arc::clone(state), acquisition.clone());
    let done = Box::new(move |outcome: Result<Release, Failure>| {
        if matches!(&outcome, Err(failure) if failure.error().is_unavailable()) {
            later.release_later(kept, options.kept);
        }
        each(at, outcome.map(|release| state.note_release(at, release)));
    });
    context
        .node()
        .submit_release(&acquisition, options, by, done);
}

/// Returns the answers by node, with `None` for failures.
pub(super) fn answered<T: Clone>(answers: &[Option<Result<T, Failure>>]) -> Vec<Option<T>> {
    answers
        .iter()
        .map(|answer| answer.as_ref().and_then(|it| it.as_ref().ok().cloned()))
        .collect()
}
