//! [`QuorumBackend`]: independent stores as one.

use super::attempt::Held;
use super::ballot::Ballot;
use super::gathering::Gathering;
use super::member::Member;
use super::proposals::Proposals;
use super::roll::Roll;
use super::seat::{Core, PATIENCE, Seat, Task};
use super::tally::{self, majority};
use super::tending::Tending;
use super::watches::{Bells, Unhung};
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Backend, Failure, LockInfo, NodeId, OnReleased,
    Receipt, Release, ReleaseOptions, Renewal, RenewalRequest, Tombstone, Wake, Waking, Watch,
};
use lock_core::{Clock, Context, Error, LeaseTime, LockName, MemberOutcome, Moment, SystemClock};
use lock_redis::parts::{Sight, Terms, Voter};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a majority that does not agree on who holds a lock is looked at before it is asked again: at first, and at most.
const SPLIT: Duration = Duration::from_millis(10);
const LONG_SPLIT: Duration = Duration::from_millis(100);

/// A lock on a majority of independent stores (Redlock).
///
/// An attempt asks all nodes at once, each on a thread of its own, and has won when a majority has granted it at the same
/// token. What is not enough is given back before the attempt returns, and late grants as soon as they come; a node that
/// does not answer is left a tombstone when it does. A release and a renewal go to every node, and return when a majority
/// has said what came of them. So a minority of nodes may be dead, frozen or slow, and delays nobody; but the end of a
/// client, by a tenth of a second, in which those that answer hear what was left to tell them.
///
/// What a release comes to, by what the nodes say:
///
/// | nodes | the release |
/// |---|---|
/// | a majority had it, and freed it | freed |
/// | so many did not have it (any more) that the others are no majority | gone |
/// | neither, until the deadline | unknown; it is repeated, and what was freed before counts as freed |
#[derive(Clone)]
pub struct QuorumBackend(pub(super) Arc<Quorum>);

/// What the backend, its attempts and its watches share.
pub(super) struct Quorum {
    pub(super) seats: Vec<Seat>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) proposals: Proposals,
    node_timeout: Duration,
    abilities: Abilities,
    max_lease: Option<Duration>,
    /// Which answers count together.
    pub(super) roll: Arc<Roll>,
    /// What a server that becomes a node is recorded with.
    pub(super) terms: Option<Terms>,
    /// Since when all servers were seen to be new.
    pub(super) beginning: Mutex<Option<Moment>>,
    /// Whether the membership is being put in order, and when that may begin again.
    pub(super) tending: Mutex<Tending>,
}

impl QuorumBackend {
    /// The fewest nodes: two of two, or one of one, are no better than one server.
    pub const FEWEST: usize = 3;
    /// How long a node has for an answer, where nothing else is said: longer than a message takes around the world, and
    /// far shorter than a lease.
    pub const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(500);

    /// A quorum of these stores, each of which has `node_timeout` for every answer. Does not talk to them.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if there are fewer than three, or one of them cannot be one of a quorum: it does not
    /// know its owners, does not tell of releases, or is not independent.
    pub fn new(
        stores: Vec<Arc<dyn Backend>>,
        node_timeout: Duration,
        context: &Context,
    ) -> Result<Self, Error> {
        let members = stores.into_iter().enumerate();
        let plain = |(at, store)| Member::Plain { store, name: format!("node {}", at + 1) };
        Self::of(members.map(plain).collect(), node_timeout, context)
    }

    pub(super) fn of(
        members: Vec<Member>,
        node_timeout: Duration,
        context: &Context,
    ) -> Result<Self, Error> {
        if members.len() < Self::FEWEST {
            return Err(Error::configuration(format!(
                "a quorum needs at least {} nodes, so that one of them may be dead, and there are {}",
                Self::FEWEST,
                members.len()
            )));
        }
        for member in &members {
            accept(member)?;
        }
        let tokens = members.iter().all(|member| member.store().abilities().tokens);
        let max_poll_interval =
            members.iter().filter_map(|member| member.store().abilities().max_poll_interval).min();
        let max_lease = members.iter().filter_map(|member| member.max_lease()).min();
        let names = members.iter().map(Member::name).collect();
        let marker = members.iter().find_map(|member| member.voter().map(Voter::marker_key));
        let roll = Roll::new(names, marker.unwrap_or_default(), max_lease.unwrap_or_default());
        let terms = members.iter().find_map(|member| member.voter().map(|voter| *voter.terms()));
        let clock = Arc::clone(&context.clock);
        let seat = |(at, member)| Seat::new(at, member, Arc::clone(&clock), node_timeout);
        Ok(Self(Arc::new(Quorum {
            seats: members.into_iter().enumerate().map(seat).collect(),
            clock: Arc::clone(&context.clock),
            proposals: Proposals::default(),
            node_timeout,
            abilities: Abilities::full().tokens(tokens).max_poll_interval(max_poll_interval),
            max_lease,
            roll: Arc::new(roll),
            terms,
            beginning: Mutex::new(None),
            tending: Mutex::default(),
        })))
    }
}

/// Refuses what cannot be one of a quorum.
fn accept(member: &Member) -> Result<(), Error> {
    let Abilities { renewable, waking, independent, .. } = member.store().abilities();
    let why = if !independent {
        "is not independent: a replica of it may take over without the last writes, or it does not grant by proposal"
    } else if !renewable {
        "cannot renew a lease"
    } else if waking != Waking::Publishes {
        "does not tell of releases"
    } else {
        return Ok(());
    };
    Err(Error::configuration(format!("{} cannot be of a quorum: it {why}", member.name())))
}

impl Quorum {
    /// By when nodes must answer what is asked now.
    pub(super) fn by(&self, by: Moment) -> Moment {
        by.min(self.clock.now() + self.node_timeout)
    }

    /// A lease beyond the longest would outlive the pause of a node that was started again.
    pub(super) fn refuse_beyond_terms(&self, lease: LeaseTime) -> Result<(), Error> {
        match self.max_lease {
            Some(longest) if lease.duration() > longest => Err(Error::misuse(format!(
                "a lease of {lease} is longer than any that this quorum grants: max_lease={longest:?}"
            ))),
            _ => Ok(()),
        }
    }

    /// Asks every node, and waits until the answers decide something. `each` hears of every answer.
    fn decide<T: Send + 'static, R>(
        &self,
        by: Moment,
        question: impl Fn(&Core, Moment) -> Result<T, Failure> + Clone + Send + 'static,
        each: impl Fn(&Core, &Result<T, Failure>) + Clone + Send + 'static,
        what: &str,
        mut decide: impl FnMut(&[Option<Result<T, Failure>>]) -> Option<R>,
    ) -> Result<R, Failure> {
        let by = self.by(by);
        let gathering = self.ask(by, question, each);
        let decided = gathering.wait(self.clock.as_ref(), by, &mut decide);
        decided.ok_or_else(|| gathering.look(|answers| self.undecided(what, answers)))
    }

    /// Asks every node, and waits for none.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        by: Moment,
        question: impl Fn(&Core, Moment) -> Result<T, Failure> + Clone + Send + 'static,
        each: impl Fn(&Core, &Result<T, Failure>) + Clone + Send + 'static,
    ) -> Arc<Gathering<Result<T, Failure>>> {
        let gathering = Gathering::of(self.seats.len());
        for seat in &self.seats {
            let (gathering, each) = (Arc::clone(&gathering), each.clone());
            seat.ask(Task::Attempt, by, question.clone(), move |core, answer| {
                each(core, &answer);
                gathering.put(core.number(), answer);
            });
        }
        gathering
    }

    /// The failure of a question that the answers do not decide. It may have been carried out if any node may have.
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
        let is_known = |answer: &Option<Result<T, Failure>>| {
            matches!(answer, Some(Err(Failure::Refused(_) | Failure::NotSent(_))))
        };
        if answers.iter().all(is_known) { Failure::Refused(error) } else { Failure::Unknown(error) }
    }

    /// Begins a release on every node. `each` hears what came of it there. Without `waiting` it is sent from here, where
    /// that can be done at once.
    fn begin_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        waiting: bool,
        each: impl Fn(usize, Result<Release, Failure>) + Clone + Send + 'static,
    ) {
        let used = closing.last_used;
        self.proposals.given_back(&acquisition.name, acquisition.owner, used);
        let ballot: Option<Arc<Ballot>> =
            acquisition.receipt.get::<Held>().map(|held| Arc::clone(&held.0));
        for seat in &self.seats {
            let (acquisition, late) = (acquisition.clone(), acquisition.clone());
            let (ballot, each) = (ballot.clone(), each.clone());
            if let Some(ballot) = &ballot
                && !waiting
                && closing.tombstone == Tombstone::None
                && seat.is_free()
            {
                submit_at(seat.core(), ballot, &acquisition, closing, by, each);
                continue;
            }
            let question = move |core: &Core, by| {
                release_at(core, ballot.as_deref(), &acquisition, closing, by)
            };
            seat.ask(Task::Attempt, by, question, move |core, answer| {
                if matches!(&answer, Err(Failure::NotSent(_))) {
                    core.remember(AcquisitionId::new(
                        late.name.clone(),
                        late.owner,
                        late.lease,
                        Receipt::default(),
                    ));
                }
                each(core.number(), answer);
            });
        }
    }
}

/// Releases on one node.
fn release_at(
    core: &Core,
    ballot: Option<&Ballot>,
    acquisition: &AcquisitionId,
    closing: ReleaseOptions,
    by: Moment,
) -> Result<Release, Failure> {
    let Some(ballot) = ballot else {
        // An attempt whose answer never came: it may be anywhere.
        return core.close(acquisition, ReleaseOptions::WITH_TOMBSTONE, by);
    };
    let at = core.number();
    let Some((receipt, closing)) = ballot.closing(at, closing) else {
        return Ok(ballot.note_release(at, Release::Gone));
    };
    let there =
        AcquisitionId::new(acquisition.name.clone(), acquisition.owner, acquisition.lease, receipt);
    core.close(&there, closing, by).map(|release| ballot.note_release(at, release))
}

/// The same without waiting for the answer.
fn submit_at(
    core: &Arc<Core>,
    ballot: &Arc<Ballot>,
    acquisition: &AcquisitionId,
    closing: ReleaseOptions,
    by: Moment,
    each: impl Fn(usize, Result<Release, Failure>) + Send + 'static,
) {
    let at = core.number();
    let Some((receipt, closing)) = ballot.closing(at, closing) else {
        return each(at, Ok(ballot.note_release(at, Release::Gone)));
    };
    let there =
        AcquisitionId::new(acquisition.name.clone(), acquisition.owner, acquisition.lease, receipt);
    let (core_then, ballot, kept) = (Arc::clone(core), Arc::clone(ballot), there.clone());
    let done = Box::new(move |answer: Result<Release, Failure>| {
        if matches!(&answer, Err(failure) if failure.error().is_unavailable()) {
            core_then.remember(kept);
        }
        each(at, answer.map(|release| ballot.note_release(at, release)));
    });
    core.store().submit_release(&there, closing, by, done);
}

/// What the nodes said, of those that answered.
pub(super) fn answered<T: Clone>(answers: &[Option<Result<T, Failure>>]) -> Vec<Option<T>> {
    answers.iter().map(|answer| answer.as_ref().and_then(|it| it.as_ref().ok().cloned())).collect()
}

/// Something if a majority has answered, whatever it said.
fn said_by_most<T>(answers: &[Option<Result<T, Failure>>]) -> Option<()> {
    let there = answers.iter().filter(|answer| matches!(answer, Some(Ok(_)))).count();
    (there >= majority(answers.len())).then_some(())
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
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let quorum = &self.0;
        let (by, gathering) = (quorum.by(by), Gathering::of(quorum.seats.len()));
        let each = {
            let gathering = Arc::clone(&gathering);
            move |at, answer| gathering.put(at, answer)
        };
        quorum.begin_release(acquisition, closing, by, true, each);
        let decide =
            |answers: &[Option<Result<Release, Failure>>]| tally::released(&answered(answers));
        let decided = gathering.wait(quorum.clock.as_ref(), by, decide);
        if let (Some(_), Some(held)) = (decided, acquisition.receipt.get::<Held>()) {
            held.0.forget_releases();
        }
        decided.ok_or_else(|| gathering.look(|answers| quorum.undecided("released it", answers)))
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        let quorum = &self.0;
        let nodes = quorum.seats.len();
        let answers: Vec<Option<Result<Release, Failure>>> = (0..nodes).map(|_| None).collect();
        let told = Arc::new(Mutex::new((answers, Some(done))));
        let asked = Arc::downgrade(quorum);
        let each = move |at: usize, answer| {
            let mut state = told.lock();
            state.0[at] = Some(answer);
            let decided = tally::released(&answered(&state.0));
            if decided.is_none() && state.0.iter().any(Option::is_none) {
                return;
            }
            let Some(done) = state.1.take() else { return };
            let outcome = decided.ok_or_else(|| {
                asked.upgrade().map_or_else(
                    || Failure::Unknown(Error::unavailable("the client is gone")),
                    |quorum| quorum.undecided("released it", &state.0),
                )
            });
            drop(state);
            done(outcome);
        };
        quorum.begin_release(acquisition, closing, quorum.by(by), false, each);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        let (quorum, clock) = (&self.0, self.0.clock.as_ref());
        let mut split = SPLIT;
        loop {
            let asked = name.clone();
            let question = move |core: &Core, by| core.member().inspect(&asked, by);
            let round = quorum.by(by);
            let gathering = quorum.ask(round, question, |_, _| {});
            let counted = |answers: &[_]| quorum.roll.counted(answers, clock.now());
            let holder = |answers: &[_]| tally::holder(&answered(&counted(answers)));
            let unknown = || {
                gathering.look(|answers| quorum.undecided("say who holds it", &counted(answers)))
            };
            let most = |answers: &[_]| said_by_most(&counted(answers));
            gathering.wait(clock, round, most).ok_or_else(unknown)?;
            // If they do not agree it is on its way from one holder to another, and the others are dead, or slow: one of those may
            // tell who has a majority, or by and by somebody has one.
            let again = clock.now() + split;
            if let Some(info) = gathering.wait(clock, again.min(round), holder) {
                return Ok(info);
            }
            if again >= by {
                return Err(unknown());
            }
            clock.wait(&Arc::default(), again);
            split = (split * 2).min(LONG_SPLIT);
        }
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let (quorum, clock) = (&self.0, self.0.clock.as_ref());
        if quorum.roll.ours().is_none() {
            let sights = quorum.look_at_all().into_iter();
            let node = |sight: Option<Sight>| Some(Arc::new(sight?.marker?.1));
            quorum.roll.why_not(&sights.map(node).collect::<Vec<_>>(), clock.now());
        }
        let (asked, ours) = (name.clone(), quorum.roll.ours());
        let question =
            move |core: &Core, by| core.member().force_release(&asked, ours.as_deref(), by);
        let counted = |answers: &[_]| quorum.roll.counted(answers, clock.now());
        let decide = |answers: &[_]| tally::forced(&answered(&counted(answers)));
        let round = quorum.by(by);
        let gathering = quorum.ask(round, question, |_, _| {});
        let decided = gathering.wait(clock, round, decide);
        decided.ok_or_else(|| {
            gathering.look(|answers| quorum.undecided("freed it", &counted(answers)))
        })
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let nodes = self.0.seats.len();
        let bells = Bells::new(nodes, wake, Arc::clone(&self.0.clock));
        let unhung = Unhung::new(name, &bells);
        let later = unhung.clone();
        let question = move |core: &Core, by| unhung.hang(core, by);
        // A node that does not answer now may be the only one that tells of a release later, when others are gone.
        let each = move |core: &Core, answer: &Result<(), Failure>| {
            if answer.is_err() {
                core.hang_later(later.clone());
            }
        };
        self.0.decide(by, question, each, "tell of its release", said_by_most)?;
        Ok(Watch::new(bells))
    }

    /// All names are on all nodes, and each of those has a thread of its own: none delays another.
    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(0)
    }

    fn abilities(&self) -> Abilities {
        self.0.abilities
    }

    /// What a majority has heard of may not have reached the others yet: a vote that stays there is in the way of those who
    /// have only a bare majority, until its lease is over.
    fn leave(&self, until: Moment) {
        let seats = &self.0.seats;
        let gathering = Gathering::of(seats.len());
        for (at, seat) in seats.iter().enumerate() {
            let gathering = Arc::clone(&gathering);
            seat.when_done(move || gathering.put(at, ()));
        }
        let until = until.min(SystemClock.now() + PATIENCE);
        gathering.wait(&SystemClock, until, |_| None::<()>);
    }
}

impl fmt::Debug for QuorumBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumBackend").field("nodes", &self.0.seats).finish_non_exhaustive()
    }
}
