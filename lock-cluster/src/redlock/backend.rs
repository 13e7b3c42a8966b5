//! [`QuorumBackend`]: independent stores as one store of locks.

use super::attempt_state::QuorumReceipt;
use super::majority::{self, majority};
use super::node::QuorumNode;
use super::node_worker::{NodeContext, Queue, SUSPECT_AFTER};
use super::quorum::{Quorum, answered};
use super::responses::Responses;
use super::watch::{PendingWatch, QuorumWatch};
use lock_core::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Backend, Backoff, Failure, LockInfo,
    LockPage, NodeId, OnReleased, PagePosition, Release, ReleaseOptions, Renewal, RenewalRequest,
    Wake, Waking, Watch, contain,
};
use lock_core::{Clock, Context, Error, Finding, LockName, Moment, SystemClock};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The first pause before nodes that disagree on the holder are queried again, because the lock is
/// changing hands. The pause doubles, with jitter.
const SPLIT: Duration = Duration::from_millis(10);
/// The longest pause before nodes that disagree are queried again, so that the new holder is
/// noticed soon.
const LONG_SPLIT: Duration = Duration::from_millis(100);

/// A lock on a majority of independent stores (Redlock).
///
/// An attempt goes to all nodes at once, each on a separate thread, and wins with a majority of
/// grants at one token. If the attempt fails, its grants are rolled back before it returns, and its
/// late grants when they arrive. If a node does not answer the rollback or a release, the lock is
/// released there with a tombstone once the node answers again. Releases go to every node that may
/// hold the lock, renewals to every node, and both return with a majority; a renewal requests new
/// votes from nodes that have lost their votes. A minority of nodes may therefore be dead, frozen
/// or slow without a delay for the callers, except that dropping the last handle waits up to 100 ms
/// for the releases on these nodes.
///
/// The outcome of a release:
///
/// | nodes | release |
/// |---|---|
/// | a majority held the lock and freed it | freed |
/// | the nodes that may have held it are no majority | gone |
/// | undecided until the deadline | unknown or refused; it is repeated, and earlier answers count |
#[derive(Clone)]
pub struct QuorumBackend(pub(super) Arc<Quorum>);

impl QuorumBackend {
    /// The fewest nodes: a quorum of one or two nodes is no better than one server.
    pub const FEWEST: usize = 3;
    /// The default timeout of a node: longer than a message takes around the world, so that distant
    /// nodes vote, and far shorter than a lease.
    pub const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(500);

    /// Creates a quorum of these stores, each of which has `node_timeout` for every answer. Does
    /// not connect.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if there are fewer than three stores, or one of them cannot be a
    /// node: it cannot renew a lease, does not publish releases, is not independent, or does not
    /// grant by proposal.
    pub fn new(
        stores: Vec<Arc<dyn Backend>>,
        node_timeout: Duration,
        context: &Context,
    ) -> Result<Self, Error> {
        let node = |(at, store)| QuorumNode::of_store(at + 1, store);
        Self::of(
            stores.into_iter().enumerate().map(node).collect(),
            node_timeout,
            context,
        )
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
        Ok(Self(Arc::new(Quorum::new(nodes, node_timeout, context))))
    }
}

/// Refuses a store that cannot be a node of a quorum.
fn check(node: &QuorumNode) -> Result<(), Error> {
    let Abilities {
        renewable, waking, ..
    } = node.abilities();
    let why = if !node.is_voter() {
        "is not independent: a replica of it may take over without the last writes, or it does not \
         grant by proposal"
    } else if !renewable {
        "cannot renew a lease"
    } else if waking != Waking::Publishes {
        "does not tell of releases"
    } else {
        return Ok(());
    };
    Err(Error::configuration(format!(
        "{} cannot be of a quorum: it {why}",
        node.name()
    )))
}

/// Returns `Some` if a majority has answered without a failure.
fn answered_by_most<T>(answers: &[Option<Result<T, Failure>>]) -> Option<()> {
    let count = answers
        .iter()
        .filter(|answer| matches!(answer, Some(Ok(_))))
        .count();
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
        let renewals = self.0.renew(batch, by);
        self.0.update_in_background();
        renewals
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
            // The nodes disagree while the lock changes hands. A slow node or the next round
            // decides.
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

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let quorum = &self.0;
        let (nodes, by) = (quorum.workers.len(), quorum.by(by));
        let watch = QuorumWatch::new(nodes, wake, Arc::clone(&quorum.clock));
        let responses = Responses::of(nodes);
        for worker in &quorum.workers {
            let pending = PendingWatch::new(name, &watch);
            let context = worker.context();
            // If the node is subscribed already, the watch starts at once, ahead of attempts and
            // releases.
            let now = quorum.clock.now();
            if let Some(Ok(())) = contain(|| pending.start(context.number(), context.node(), now)) {
                responses.put(context.number(), Ok(()));
                continue;
            }
            let (later, responses) = (pending.clone(), Arc::clone(&responses));
            let wanted = pending.clone();
            let known = move |_: &NodeContext| (!wanted.is_wanted()).then_some(());
            let request = move |context: &NodeContext, by| {
                pending.start(context.number(), context.node(), by)
            };
            worker.ask_unless(
                Queue::Attempts,
                by,
                known,
                request,
                move |context, outcome| {
                    // The watch starts later on a node that fails now, because that node may be the
                    // only one to report a release.
                    if outcome.is_err() {
                        context.watch_later(later);
                    }
                    responses.put(context.number(), outcome);
                },
            );
        }
        let decided = responses.wait(quorum.clock.as_ref(), by, answered_by_most);
        decided.ok_or_else(|| {
            responses.read(|outcomes| quorum.undecided("tell of its release", outcomes))
        })?;
        Ok(Watch::new(watch))
    }

    /// Returns one node for all names: each quorum node has a separate thread for renewals, so no
    /// quorum node delays another.
    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(0)
    }

    fn abilities(&self) -> Abilities {
        self.0.abilities
    }

    /// Waits for attempts and releases beyond the majority, at most for 100 ms (`SUSPECT_AFTER`):
    /// until the lease of a remaining vote has ended, the vote would block clients that reach only
    /// a bare majority. Until the same time, also waits for a change of the members that is in
    /// progress, so that short-lived clients complete such changes, too.
    fn close(&self, until: Moment) {
        let workers = &self.0.workers;
        let responses = Responses::of(workers.len());
        for worker in workers {
            let (responses, at) = (Arc::clone(&responses), worker.number());
            worker.when_done(move || responses.put(at, ()));
        }
        let until = until.min(SystemClock.now() + SUSPECT_AFTER);
        responses.wait_for_all(&SystemClock, until);
        while self.0.update.lock().is_running && SystemClock.now() < until {
            SystemClock.wait(&self.0.update_ended, until);
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

impl Admin for QuorumBackend {
    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        let (quorum, clock) = (&self.0, self.0.clock.as_ref());
        let wanted: Arc<[LockName]> = names.into();
        let request = move |context: &NodeContext, by| context.node().inspect_all(&wanted, by);
        let round = quorum.by(by);
        let responses = quorum.ask(Queue::Attempts, round, request);
        let decided = |responses: &[_]| {
            let answers = quorum.counted(responses);
            let answer = |answer: &Option<Result<Vec<Result<LockInfo, Failure>>, _>>, at: usize| {
                answer
                    .as_ref()?
                    .as_ref()
                    .ok()?
                    .get(at)?
                    .as_ref()
                    .ok()
                    .cloned()
            };
            let answers = |at| answers.iter().map(|it| answer(it, at)).collect::<Vec<_>>();
            (0..names.len())
                .map(|at| majority::state(&answers(at)))
                .collect::<Vec<_>>()
        };
        let all_decided =
            |responses: &[_]| decided(responses).iter().all(Option::is_some).then_some(());
        let _all_decided = responses.wait(clock, round, all_decided);
        let infos = responses.read(decided).into_iter().zip(names);
        // The nodes disagree while a lock changes hands: such a lock is inspected again.
        infos
            .map(|(info, name)| info.map_or_else(|| self.inspect(name, by), Ok))
            .collect()
    }

    fn list(&self, pattern: &str, from: &PagePosition, by: Moment) -> Result<LockPage, Failure> {
        let quorum = &self.0;
        // One character for each node that was listed; `!` stands for a node that could not be
        // queried.
        let (nodes, part) = from.part.split_once('/').unwrap_or(("", ""));
        let Some(worker) = quorum.workers.get(nodes.len()) else {
            return Ok(LockPage::default());
        };
        let inner = PagePosition::new(part, from.cursor);
        let behind = |nodes: String| {
            let is_last = nodes.len() == quorum.workers.len();
            (!is_last).then(|| PagePosition::new(nodes + "/", 0))
        };
        let page = match worker.context().node().list(pattern, &inner, quorum.by(by)) {
            Ok(page) => page,
            Err(failure) => {
                let nodes = format!("{nodes}!");
                // Fails, because a majority that holds a lock may consist of nodes that could not
                // be queried.
                if nodes.matches('!').count() >= majority(quorum.workers.len()) {
                    return Err(failure);
                }
                return Ok(LockPage::new(Vec::new(), behind(nodes)));
            }
        };
        let names: Vec<_> = page.locks.into_iter().map(|(name, _)| name).collect();
        let infos = if names.is_empty() {
            Vec::new()
        } else {
            self.inspect_all(&names, by)
        };
        let mut locks = Vec::with_capacity(names.len());
        for (name, info) in names.into_iter().zip(infos) {
            let info = info?;
            // A lock on a minority of nodes, as after a split vote, is not held.
            locks.extend(info.holder.is_some().then_some((name, info)));
        }
        let next = match page.next {
            Some(inner) => Some(PagePosition::new(
                format!("{nodes}/{}", inner.part),
                inner.cursor,
            )),
            None => behind(format!("{nodes}.")),
        };
        Ok(LockPage::new(locks, next))
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let (quorum, clock) = (&self.0, self.0.clock.as_ref());
        if quorum.membership.known_quorum().is_none() {
            let views: Vec<_> = quorum
                .survey()
                .into_iter()
                .map(|state| state?.view())
                .collect();
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

    fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        self.0.diagnose(by)
    }
}

impl fmt::Debug for QuorumBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumBackend")
            .field("nodes", &self.0.workers)
            .finish_non_exhaustive()
    }
}
