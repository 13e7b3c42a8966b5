//! [`QuorumBackend`]: independent stores as one store of locks.

use super::attempt_state::{AttemptState, QuorumReceipt};
use super::majority::{self, majority};
use super::membership::Membership;
use super::node::{QuorumNode, QuorumTerms, RedisNode, Response};
use super::node_worker::{NodeContext, NodeWorker, Queue, SUSPECT_AFTER, is_unavailable};
use super::responses::Responses;
use super::token::TokenProposals;
use super::watch::{PendingWatch, QuorumWatch};
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Backend, Backoff, Failure, FoundBusyBy, LockInfo,
    LockPage, NodeId, OnReleased, PagePosition, Receipt, Release, ReleaseOptions, Renewal,
    RenewalRequest, Tombstone, Wake, Waking, Watch,
};
use lock_core::{
    Clock, Context, Error, Finding, LeaseTime, LockName, MemberOutcome, Moment, SystemClock,
};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The pause before nodes that disagree on the holder are asked again; it doubles.
const SPLIT: Duration = Duration::from_millis(10);
const LONG_SPLIT: Duration = Duration::from_millis(100);

/// The pauses between updates of the membership while they change nothing.
const BETWEEN_UPDATES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));

/// A lock on a majority of independent stores (Redlock).
///
/// An attempt asks all nodes at once, each on a thread of its own, and wins with a majority of
/// grants at the same token. Other grants are rolled back before the attempt returns, and late
/// grants when they arrive; a node that does not answer gets a tombstone when it does. Releases and
/// renewals go to every node, and return with a majority. So a minority of nodes may be dead,
/// frozen or slow without delay, except that dropping the last handle waits up to 100 ms for their
/// releases.
///
/// The outcome of a release:
///
/// | nodes | release |
/// |---|---|
/// | a majority held the lock and freed it | freed |
/// | the nodes that did not hold it leave no majority | gone |
/// | neither, until the deadline | unknown; it is repeated, and earlier answers count |
#[derive(Clone)]
pub struct QuorumBackend(pub(super) Arc<Quorum>);

/// The state that the backend, its attempts and its watches share.
pub(super) struct Quorum {
    pub(super) workers: Vec<NodeWorker>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) proposals: TokenProposals,
    node_timeout: Duration,
    abilities: Abilities,
    pub(super) membership: Arc<Membership>,
    /// The terms of the servers; `None` for other stores.
    pub(super) terms: Option<QuorumTerms>,
    /// Since when all servers have no marker.
    pub(super) starting: Mutex<Option<Moment>>,
    pub(super) update: Mutex<UpdateState>,
}

/// The state of the background update of the members.
pub(super) struct UpdateState {
    /// The earliest start of the next update; `NEVER` while one runs.
    pub(super) not_before: Moment,
    /// For updates in a row without a change.
    pub(super) backoff: Backoff,
}

/// The responses of one node to a batch of renewals.
type Batch = Result<Vec<Result<Response<Renewal>, Failure>>, Failure>;

impl QuorumBackend {
    /// The fewest nodes: two of two, or one of one, are no better than one server.
    pub const FEWEST: usize = 3;
    /// The default time-out of a node: longer than a message takes around the world, and far
    /// shorter than a lease.
    pub const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(500);

    /// A quorum of these stores, each of which has `node_timeout` for every answer. Connects to
    /// none.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if there are fewer than three, or one of them cannot be a node:
    /// it cannot renew a lease, does not publish releases, or is not independent.
    pub fn new(
        stores: Vec<Arc<dyn Backend>>,
        node_timeout: Duration,
        context: &Context,
    ) -> Result<Self, Error> {
        let node = |(at, store)| QuorumNode::Store { store, name: format!("node {}", at + 1) };
        Self::of(stores.into_iter().enumerate().map(node).collect(), node_timeout, context)
    }

    pub(super) fn of(
        nodes: Vec<QuorumNode>,
        node_timeout: Duration,
        context: &Context,
    ) -> Result<Self, Error> {
        if nodes.len() < Self::FEWEST {
            return Err(Error::configuration(format!(
                "a quorum needs at least {} nodes, so that one of them may be dead, and there are \
                 {}",
                Self::FEWEST,
                nodes.len()
            )));
        }
        nodes.iter().try_for_each(check)?;
        let abilities = || nodes.iter().map(QuorumNode::abilities);
        let tokens = abilities().all(|abilities| abilities.tokens);
        let first_renewal = abilities().filter_map(|it| it.first_renewal).min();
        let server = nodes.iter().find_map(QuorumNode::server);
        let terms = server.map(|server| *server.terms());
        let membership = Membership::new(
            nodes.iter().map(QuorumNode::name).collect(),
            server.map(RedisNode::marker_key).unwrap_or_default(),
            terms.map(|terms| terms.max_lease).unwrap_or_default(),
        );
        let clock = &context.clock;
        let worker = |(at, node)| NodeWorker::new(at, node, Arc::clone(clock), node_timeout);
        Ok(Self(Arc::new(Quorum {
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
                not_before: Moment::from_nanos(0),
                backoff: BETWEEN_UPDATES,
            }),
        })))
    }
}

/// Refuses a store that cannot be a node of a quorum.
fn check(node: &QuorumNode) -> Result<(), Error> {
    let Abilities { renewable, waking, independent, .. } = node.abilities();
    let why = if !independent {
        "is not independent: a replica of it may take over without the last writes, or it does not \
         grant by proposal"
    } else if !renewable {
        "cannot renew a lease"
    } else if waking != Waking::Publishes {
        "does not tell of releases"
    } else {
        return Ok(());
    };
    Err(Error::configuration(format!("{} cannot be of a quorum: it {why}", node.name())))
}

impl Quorum {
    /// The time that a node has for an answer.
    pub(super) fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// The deadline of requests that are sent now.
    pub(super) fn by(&self, by: Moment) -> Moment {
        by.min(self.clock.now() + self.node_timeout)
    }

    /// Refuses a lease that would outlive the pause of a restarted node.
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

    /// Sends a request to every node, and waits for none.
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

    fn counted<T: Clone>(
        &self,
        responses: &[Option<Result<Response<T>, Failure>>],
    ) -> Vec<Option<Result<T, Failure>>> {
        self.membership.counted(responses, self.clock.now())
    }

    /// The failure of a request that the answers do not decide. Its outcome is unknown if that of
    /// any node is.
    fn undecided<T>(&self, what: &str, answers: &[Option<Result<T, Failure>>]) -> Failure {
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

    /// Sends a release to every node; `each` gets the outcomes. Without `waits` it is sent from
    /// this thread where that is possible at once.
    fn send_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        waits: bool,
        each: impl Fn(usize, Result<Release, Failure>) + Clone + Send + 'static,
    ) {
        self.proposals.released(&acquisition.name, acquisition.owner, options.last_used);
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
            let (state, late) = (state.clone(), acquisition.clone());
            let request = move |context: &NodeContext, by| match &state {
                Some(state) => state.release_on(context, &acquisition, options, by),
                // An attempt without an answer may have been granted on any node.
                None => context.release(&acquisition, ReleaseOptions::WITH_TOMBSTONE, by),
            };
            worker.ask(Queue::Attempts, by, request, move |context, outcome| {
                if matches!(&outcome, Err(Failure::NotSent(_))) {
                    let AcquisitionId { name, owner, lease, .. } = late;
                    let receipt = Receipt::default();
                    context.release_later(AcquisitionId::new(name, owner, lease, receipt), None);
                }
                each(context.number(), outcome);
            });
        }
    }

    /// Renews these. A lease beyond the terms is refused before it is sent: a node would keep it.
    fn renew(&self, batch: &[RenewalRequest], by: Moment) -> Vec<Result<Renewal, Failure>> {
        let refusals: Vec<_> =
            batch.iter().map(|one| self.check_lease(one.acquisition.lease).err()).collect();
        let allowed = batch.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none());
        let mut renewals =
            self.renew_allowed(allowed.map(|(one, _)| one.clone()).collect(), by).into_iter();
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
        let (count, by) = (batch.len(), self.by(by));
        let batch: Arc<[_]> = batch.into();
        let request = move |context: &NodeContext, by| {
            let on_node = |one: &RenewalRequest| {
                let mut one = one.clone();
                let state = one.acquisition.receipt.get::<QuorumReceipt>();
                let receipt = state.map(|receipt| receipt.0.receipt(context.number()));
                one.acquisition.receipt = receipt.unwrap_or_default();
                one
            };
            let batch: Vec<_> = batch.iter().map(on_node).collect();
            let renewals = context.node().renew(&batch, by);
            match renewals.first() {
                // A node that answered none of them is silent.
                Some(Err(failure)) if renewals.iter().all(is_unavailable) => Err(failure.clone()),
                _ => Ok(renewals),
            }
        };
        let responses = self.ask(Queue::Renewals, by, request);
        let counted = |responses: &[Option<Batch>], at: usize| {
            let one = |response: &Option<Batch>| match response.as_ref()? {
                Ok(renewals) => renewals.get(at).cloned(),
                Err(failure) => Some(Err(failure.clone())),
            };
            self.counted(&responses.iter().map(one).collect::<Vec<_>>())
        };
        let renewed = |answers: &[_]| majority::renewed(&answered(answers));
        let all_decided = |responses: &[Option<Batch>]| {
            (0..count).all(|at| renewed(&counted(responses, at)).is_some()).then_some(())
        };
        let _all_decided = responses.wait(self.clock.as_ref(), by, all_decided);
        responses.read(|responses| {
            let renewal = |at: usize| {
                let answers = counted(responses, at);
                renewed(&answers).ok_or_else(|| self.undecided("renewed it", &answers))
            };
            (0..count).map(renewal).collect()
        })
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
    let Some(options) = state.release_options(at, options) else {
        return each(at, Ok(state.note_release(at, Release::Gone)));
    };
    let acquisition = state.with_receipt(acquisition, at);
    let (later, state, kept) = (Arc::clone(context), Arc::clone(state), acquisition.clone());
    let done = Box::new(move |outcome: Result<Release, Failure>| {
        if matches!(&outcome, Err(failure) if failure.error().is_unavailable()) {
            later.release_later(kept, options.kept);
        }
        each(at, outcome.map(|release| state.note_release(at, release)));
    });
    context.node().submit_release(&acquisition, options, by, done);
}

/// The answers without the failures.
fn answered<T: Clone>(answers: &[Option<Result<T, Failure>>]) -> Vec<Option<T>> {
    answers.iter().map(|answer| answer.as_ref().and_then(|it| it.as_ref().ok().cloned())).collect()
}

/// A decision if a majority has answered.
fn answered_by_most<T>(answers: &[Option<Result<T, Failure>>]) -> Option<()> {
    let count = answers.iter().filter(|answer| matches!(answer, Some(Ok(_)))).count();
    (count >= majority(answers.len())).then_some(())
}

impl Backend for QuorumBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        self.0.attempt(attempt, by)
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        self.0.renew(batch, by)
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let quorum = &self.0;
        let (by, responses) = (quorum.by(by), Responses::of(quorum.workers.len()));
        let each = {
            let responses = Arc::clone(&responses);
            move |at, outcome| responses.put(at, outcome)
        };
        quorum.send_release(acquisition, options, by, true, each);
        let decide = |outcomes: &[_]| majority::released(&answered(outcomes));
        let decided = responses.wait(quorum.clock.as_ref(), by, decide);
        if let (Some(_), Some(receipt)) = (decided, acquisition.receipt.get::<QuorumReceipt>()) {
            receipt.0.forget_releases();
        }
        decided.ok_or_else(|| responses.read(|it| quorum.undecided("released it", it)))
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        let quorum = &self.0;
        let outcomes: Vec<Option<Result<Release, Failure>>> =
            quorum.workers.iter().map(|_| None).collect();
        let state = Arc::new(Mutex::new((outcomes, Some(done))));
        let weak = Arc::downgrade(quorum);
        let each = move |at: usize, outcome| {
            let mut state = state.lock();
            let (outcomes, done) = &mut *state;
            outcomes[at] = Some(outcome);
            let decided = majority::released(&answered(outcomes));
            if decided.is_none() && outcomes.iter().any(Option::is_none) {
                return;
            }
            let Some(done) = done.take() else { return };
            let outcome = decided.ok_or_else(|| match weak.upgrade() {
                Some(quorum) => quorum.undecided("released it", outcomes),
                None => Failure::Unknown(Error::unavailable("the client is gone")),
            });
            drop(state);
            done(outcome);
        };
        quorum.send_release(acquisition, options, quorum.by(by), false, each);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        let (quorum, clock) = (&self.0, self.0.clock.as_ref());
        let mut backoff = Backoff::new(SPLIT, LONG_SPLIT);
        loop {
            let name = name.clone();
            let request = move |context: &NodeContext, by| context.node().inspect(&name, by);
            let round = quorum.by(by);
            let responses = quorum.ask(Queue::Attempts, round, request);
            let holder = |it: &[_]| majority::holder(&answered(&quorum.counted(it)));
            let unknown =
                || responses.read(|it| quorum.undecided("say who holds it", &quorum.counted(it)));
            let most = |it: &[_]| answered_by_most(&quorum.counted(it));
            responses.wait(clock, round, most).ok_or_else(unknown)?;
            // Nodes that disagree: the lock changes hands, and a slow node or the next round tells.
            let next_round = clock.now() + backoff.next();
            if let Some(info) = responses.wait(clock, next_round.min(round), holder) {
                return Ok(info);
            }
            if next_round >= by {
                return Err(unknown());
            }
            clock.wait(&Arc::default(), next_round);
        }
    }

    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        let (quorum, clock) = (&self.0, self.0.clock.as_ref());
        let wanted: Arc<[LockName]> = names.into();
        let request = move |context: &NodeContext, by| context.node().inspect_all(&wanted, by);
        let round = quorum.by(by);
        let responses = quorum.ask(Queue::Attempts, round, request);
        let decided = |responses: &[_]| {
            let answers = quorum.counted(responses);
            let answer = |answer: &Option<Result<Vec<Result<LockInfo, Failure>>, _>>, at: usize| {
                answer.as_ref()?.as_ref().ok()?.get(at)?.as_ref().ok().cloned()
            };
            let answers = |at| answers.iter().map(|it| answer(it, at)).collect::<Vec<_>>();
            (0..names.len()).map(|at| majority::state(&answers(at))).collect::<Vec<_>>()
        };
        let all_decided =
            |responses: &[_]| decided(responses).iter().all(Option::is_some).then_some(());
        let _all_decided = responses.wait(clock, round, all_decided);
        let infos = responses.read(decided).into_iter().zip(names);
        // Where the nodes disagree, the lock changes hands: that is asked for again.
        infos.map(|(info, name)| info.map_or_else(|| self.inspect(name, by), Ok)).collect()
    }

    fn list(&self, pattern: &str, from: &PagePosition, by: Moment) -> Result<LockPage, Failure> {
        let quorum = &self.0;
        // One character for each node that was gone through: `!` for one that could not be asked.
        let (nodes, part) = from.part.split_once('/').unwrap_or(("", ""));
        let Some(worker) = quorum.workers.get(nodes.len()) else { return Ok(LockPage::default()) };
        let inner = PagePosition::new(part, from.cursor);
        let behind = |nodes: String| {
            let is_last = nodes.len() == quorum.workers.len();
            (!is_last).then(|| PagePosition::new(nodes + "/", 0))
        };
        let page = match worker.context().node().list(pattern, &inner, quorum.by(by)) {
            Ok(page) => page,
            Err(failure) => {
                let nodes = format!("{nodes}!");
                // A lock may be on those alone that could not be asked.
                if nodes.matches('!').count() >= majority(quorum.workers.len()) {
                    return Err(failure);
                }
                return Ok(LockPage::new(Vec::new(), behind(nodes)));
            }
        };
        let names: Vec<_> = page.locks.into_iter().map(|(name, _)| name).collect();
        let infos = if names.is_empty() { Vec::new() } else { self.inspect_all(&names, by) };
        let mut locks = Vec::with_capacity(names.len());
        for (name, info) in names.into_iter().zip(infos) {
            let info = info?;
            // A minority alone, as after a split vote, does not hold it.
            locks.extend(info.holder.is_some().then_some((name, info)));
        }
        let next = match page.next {
            Some(inner) => Some(PagePosition::new(format!("{nodes}/{}", inner.part), inner.cursor)),
            None => behind(format!("{nodes}.")),
        };
        Ok(LockPage::new(locks, next))
    }

    fn poll_pause(&self, name: &LockName, found_by: FoundBusyBy) -> Option<Duration> {
        let nodes = self.0.workers.iter().map(|worker| worker.context().node());
        nodes.filter_map(|node| node.poll_pause(name, found_by)).min()
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let (quorum, clock) = (&self.0, self.0.clock.as_ref());
        if quorum.membership.known_quorum().is_none() {
            let views: Vec<_> = quorum.survey().into_iter().map(|state| state?.view()).collect();
            quorum.membership.exclusions(&views, clock.now());
        }
        let (name, known) = (name.clone(), quorum.membership.known_quorum());
        let request = move |context: &NodeContext, by| {
            context.node().force_release(&name, known.as_deref(), by)
        };
        let by = quorum.by(by);
        let responses = quorum.ask(Queue::Attempts, by, request);
        let decide = |it: &[_]| majority::forced(&answered(&quorum.counted(it)));
        responses
            .wait(clock, by, decide)
            .ok_or_else(|| responses.read(|it| quorum.undecided("freed it", &quorum.counted(it))))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let quorum = &self.0;
        let (nodes, by) = (quorum.workers.len(), quorum.by(by));
        let watch = QuorumWatch::new(nodes, wake, Arc::clone(&quorum.clock));
        let responses = Responses::of(nodes);
        for worker in &quorum.workers {
            let pending = PendingWatch::new(name, &watch);
            let (later, responses) = (pending.clone(), Arc::clone(&responses));
            let request = move |context: &NodeContext, by| {
                pending.start(context.number(), context.node(), by)
            };
            worker.ask(Queue::Attempts, by, request, move |context, outcome| {
                // A node that fails now may be the only one to report a release later.
                if outcome.is_err() {
                    context.watch_later(later);
                }
                responses.put(context.number(), outcome);
            });
        }
        let decided = responses.wait(quorum.clock.as_ref(), by, answered_by_most);
        decided.ok_or_else(|| {
            responses.read(|outcomes| quorum.undecided("tell of its release", outcomes))
        })?;
        Ok(Watch::new(watch))
    }

    /// All names are on all nodes, and each node has a thread for renewals: none delays another.
    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(0)
    }

    fn abilities(&self) -> Abilities {
        self.0.abilities
    }

    fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        self.0.diagnose(by)
    }

    /// Waits for releases beyond the majority: a vote that is left blocks clients with a bare
    /// majority until its lease is over.
    fn leave(&self, until: Moment) {
        let workers = &self.0.workers;
        let responses = Responses::of(workers.len());
        for worker in workers {
            let (responses, at) = (Arc::clone(&responses), worker.number());
            worker.when_done(move || responses.put(at, ()));
        }
        responses.wait_for_all(&SystemClock, until.min(SystemClock.now() + SUSPECT_AFTER));
    }
}

impl fmt::Debug for QuorumBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumBackend").field("nodes", &self.0.workers).finish_non_exhaustive()
    }
}
