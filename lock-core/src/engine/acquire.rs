//! Taking a lock: queue locally, ask the store once it is our turn, and sleep until that may have changed.
//!
//! Register, look again, then sleep: nothing that happens between the look and the sleep is lost, because whoever we
//! registered with raises a signal that stays up. One absolute deadline is computed at the door; every sleep has it, or
//! an earlier bound.

mod nested;
mod queue;
mod withdrawn;

use super::entry::{Entered, Entry, EntryWake, Place, Wanted};
use super::shortfall::{Weighed, refuse};
use super::tenure::{Beginning, MOST_HOLDS, Tenure, Watched};
use super::turns::Returned;
use super::{Engine, forked};
use crate::backend::{Answer, Attempt, Closing, Failure, Grant, Receipt, TenureId, Tokens, Waking};
use crate::clock::{Moment, Signal, Woken};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::holder::Holder;
use crate::interrupt::Registration;
use crate::lease::{Lease, LeaseTime};
use crate::options::LockOptions;
use crate::owner::OwnerId;
use crate::replication::Replication;
use queue::Queued;
use std::cell::LazyCell;
use std::sync::Arc;
use std::time::Duration;
use withdrawn::not_voting;

/// The first pause before an unreachable store is asked again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The shortest sleep on a busy lock: a lease that has less than a millisecond left is reported as zero.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// How many tokens are set aside for hand-offs, where others of this client wait: more than can take their turns in the
/// 5 ms for which a client keeps a lock by default. They are microseconds: if their holder dies, the counter is ahead of the
/// clock by two milliseconds.
const SET_ASIDE: u32 = 2_000;

thread_local! {
    /// A thread waits for one lock at a time, so it needs one signal. One that is still up from an earlier wait costs a
    /// look around, no more.
    static SIGNAL: Arc<Signal> = Arc::new(Signal::new());
}

/// What a wait is to do, from the options.
pub(super) struct Plan {
    start: Moment,
    /// `None`: wait for ever.
    deadline: Option<Moment>,
    lease: Lease,
    pub(super) time: LeaseTime,
    pub(super) replication: Replication,
    /// What the options said of it, if anything.
    pub(super) asked_replication: Option<Replication>,
}

impl Plan {
    fn waits(&self) -> bool {
        self.deadline != Some(self.start)
    }

    /// Whether a holding of this kind may be passed on to another thread.
    fn may_be_handed(&self, budget: Duration) -> bool {
        self.is_watched() && !budget.is_zero()
    }

    /// Whether it is kept without an end.
    fn is_watched(&self) -> bool {
        matches!(self.lease, Lease::Watched { renewals: None, .. })
    }

    fn wanted(&self, holder: &Holder, signal: &Arc<Signal>) -> Wanted {
        Wanted {
            holder: holder.clone(),
            signal: Arc::clone(signal),
            since: self.start,
            watched: self.is_watched().then_some(self.time),
            replication: self.replication,
        }
    }
}

impl Engine {
    /// Takes the lock for `thread`, the calling one, or for a guard of its own; `None` if it was busy until the deadline.
    pub(crate) fn acquire(
        &self,
        entry: &Arc<Entry>,
        thread: Option<u64>,
        options: &LockOptions,
    ) -> Result<Option<Arc<Tenure>>, Error> {
        #[cfg(feature = "tracing")]
        let span = crate::trace::acquire(&entry.name);
        let result =
            self.try_acquire(entry, thread, options).map_err(|error| error.on(&entry.name));
        #[cfg(feature = "tracing")]
        crate::trace::ended(&span, &result);
        result
    }

    fn try_acquire(
        &self,
        entry: &Arc<Entry>,
        thread: Option<u64>,
        options: &LockOptions,
    ) -> Result<Option<Arc<Tenure>>, Error> {
        let plan = self.plan(options)?;
        if self.origin.seems_elsewhere() {
            return Err(forked());
        }
        let signal = LazyCell::new(|| SIGNAL.try_with(Arc::clone).unwrap_or_default());
        let interrupt = options.interrupt.as_ref().map(|interrupt| interrupt.register(&signal));
        if let Some(interrupt) = &interrupt {
            interrupt.check()?;
        }
        let holder = LazyCell::new(|| Holder::of(thread));
        let wanted = || plan.wanted(&holder, &signal);
        match entry.enter(self, thread, plan.waits(), wanted) {
            Entered::Nested(tenure) => self.nest(entry, tenure, &plan).map(Some),
            Entered::TooDeep => Err(Error::misuse(format!(
                "this thread holds it {MOST_HOLDS} times already, which is the limit"
            ))),
            Entered::Lost(tenure) => Err(tenure.lost_error()),
            Entered::Busy => {
                self.events.emit(|| Event::Contended { lock: entry.name.clone() });
                Ok(None)
            }
            Entered::Unavailable(error) => Err(error),
            Entered::Queued(place) => {
                Wait::new(self, &plan, &signal, interrupt.as_ref()).run(place, &holder)
            }
        }
    }

    /// Tells that somebody who asked for it at `asked` has it.
    pub(super) fn tell_acquired(&self, tenure: &Tenure, asked: Moment) {
        self.events.emit(|| Event::Acquired {
            lock: tenure.name.clone(),
            token: tenure.token,
            waited: self.clock.now().since(asked),
        });
    }

    fn plan(&self, options: &LockOptions) -> Result<Plan, Error> {
        let lease = options.lease.unwrap_or(self.settings.lease);
        let time = match options.lease {
            Some(lease) => lease.time()?,
            None => self.settings.lease_time,
        };
        if !self.abilities.owned && matches!(lease, Lease::Watched { .. }) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this wire format does not know who holds a lock, so the watchdog cannot keep it: ask for a fixed lease",
            ));
        }
        let replication = match options.replication {
            Some(asked) => {
                refuse(&asked, &self.abilities)?;
                asked.within(time)
            }
            None if self.settings.replication.is_off() => Replication::off(),
            None => self.settings.replication.within(time),
        };
        let start = self.clock.now();
        let deadline = options.wait.map(|wait| start + wait);
        let asked_replication = options.replication;
        Ok(Plan { start, deadline, lease, time, replication, asked_replication })
    }
}

/// One thread's wait for one lock.
pub(super) struct Wait<'a> {
    pub(super) engine: &'a Engine,
    pub(super) plan: &'a Plan,
    signal: &'a Arc<Signal>,
    interrupt: Option<&'a Registration<'a>>,
    /// The same for every request of this wait, and never used again. A new one after a grant that was taken back, and after
    /// an attempt that the store says is used up.
    pub(super) owner: OwnerId,
    /// Whether a request of this owner went unanswered.
    pub(super) doubt: bool,
    /// Whether it was told that the lock is contended.
    contended: bool,
    /// How often in a row the store would not tell of releases.
    unwatched: u32,
    /// How often in a row several got in each other's way.
    divided: u32,
    /// How many tokens to have set aside. The same for every send of an attempt that may have been granted: the answer to
    /// a repetition is counted back from the last token by it.
    set_aside: u32,
}

/// What to do after an attempt.
pub(super) enum Next {
    Again,
    Sleep(Moment),
    /// The same, and news of releases are no reason to get up.
    Pause(Moment),
    GiveUp,
}

impl<'a> Wait<'a> {
    fn new(
        engine: &'a Engine,
        plan: &'a Plan,
        signal: &'a Arc<Signal>,
        interrupt: Option<&'a Registration<'a>>,
    ) -> Self {
        let owner = engine.new_owner();
        Self {
            engine,
            plan,
            signal,
            interrupt,
            owner,
            doubt: false,
            contended: false,
            unwatched: 0,
            divided: 0,
            set_aside: 0,
        }
    }

    fn run(mut self, mut place: Place<'_>, holder: &Holder) -> Result<Option<Arc<Tenure>>, Error> {
        let entry = Arc::clone(place.entry());
        match self.queue(&mut place, holder)? {
            Queued::Mine => {}
            Queued::Handed(tenure) => return Ok(Some(tenure)),
            Queued::Late => return Ok(None),
        }
        let answer = self.contend(&place, &entry);
        if let Ok(Some((grant, sent))) = answer {
            return self.take(place, &entry, holder.clone(), grant, sent).map(Some);
        }
        self.close(&entry);
        answer.map(|_| None)
    }

    /// Asks the store until it grants the lock or the deadline has come. `None`: it was busy until then.
    fn contend(
        &mut self,
        place: &Place<'_>,
        entry: &Arc<Entry>,
    ) -> Result<Option<(Grant, Moment)>, Error> {
        let engine = self.engine;
        let mut outage = Outage { since: place.outage_since(), attempts: 0 };
        loop {
            // What was raised before this request, this request will see for itself. The interrupt raises the signal, too:
            // it is looked at after the signal was taken down, or one that fires in between would sleep with us.
            self.signal.take();
            self.check_interrupt()?;
            if !self.doubt {
                let may_hand_on = self.plan.may_be_handed(engine.settings.hand_off);
                self.set_aside = if may_hand_on && place.has_followers() { SET_ASIDE } else { 0 };
            }
            let sent = engine.clock.now();
            let next = match self.ask(entry, sent) {
                Ok(Answer::Granted(grant)) => {
                    if outage.since.is_some() {
                        place.set_outage(None);
                    }
                    return Ok(Some((grant, sent)));
                }
                Ok(Answer::Unacknowledged(grant, shortfall)) => {
                    match self.fell_short(place, grant, shortfall, sent, &mut outage)? {
                        Weighed::Accepted(grant) => {
                            place.set_outage(None);
                            return Ok(Some((grant, sent)));
                        }
                        Weighed::TakenBack(next) => next,
                    }
                }
                Ok(Answer::Busy(left)) => {
                    if outage.since.is_some() {
                        place.set_outage(None);
                        outage = Outage::default();
                    }
                    self.busy(place, entry, left)?
                }
                Ok(Answer::Withdrawn(why)) => {
                    self.withdrawn(place, entry, why, sent, &mut outage)?
                }
                Ok(Answer::Stale(_)) => {
                    let why = "the store turned down a token that nobody had proposed";
                    let failure = Failure::Refused(Error::unavailable(why));
                    self.failed(place, failure, sent, &mut outage)?
                }
                Ok(Answer::NotVoting(left)) => {
                    let failure = Failure::Refused(not_voting(left));
                    self.failed(place, failure, sent, &mut outage)?
                }
                Err(failure) => self.failed(place, failure, sent, &mut outage)?,
            };
            match next {
                Next::Again => {}
                Next::GiveUp => return Ok(None),
                Next::Pause(until) => self.pause(until)?,
                Next::Sleep(until) => {
                    // Also at the deadline: it may have been freed at this very moment, so it is looked at once more
                    // before it is said that it was busy.
                    if engine.clock.wait(self.signal, self.at_most(until)) == Woken::Signalled {
                        self.let_others_go_first(place);
                    }
                }
            }
        }
    }

    /// After news of a release: waits for a moment if others have waited for longer.
    fn let_others_go_first(&self, place: &Place<'_>) {
        loop {
            let delay = place.delay();
            if delay.is_zero() || self.check_interrupt().is_err() {
                return;
            }
            let until = self.at_most(self.engine.clock.now() + delay);
            if self.engine.clock.wait(self.signal, until) == Woken::Due {
                return;
            }
            // More news: one of those had it and gave it back, so fewer are left to go first. Not at once, or a lock that
            // is held for shorter than the delay would never be left to them.
        }
    }

    fn ask(&self, entry: &Arc<Entry>, sent: Moment) -> Result<Answer, Failure> {
        let tokens = if self.engine.settings.tokens {
            Tokens::Assign { reserve: self.set_aside }
        } else {
            Tokens::None
        };
        let replication = self.plan.replication;
        let attempt = Attempt::new(&entry.name, self.owner, self.plan.time)
            .tokens(tokens)
            .replication(replication);
        let by = sent + (self.engine.settings.command_timeout + replication.patience());
        self.engine.ask(|backend| backend.acquire(&attempt, by))
    }

    /// Somebody else has it: see to it that we are woken, or sleep until it can have changed.
    fn busy(
        &mut self,
        place: &Place<'_>,
        entry: &Arc<Entry>,
        left: Option<Duration>,
    ) -> Result<Next, Error> {
        self.tell_contended(entry);
        place.found_busy();
        let now = self.engine.clock.now();
        if self.plan.deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(Next::GiveUp);
        }
        if let Waking::Polls { interval, jitter } = self.engine.abilities.waking {
            return Ok(Next::Sleep(
                now + interval.max(SHORTEST_SLEEP) + jitter.mul_f64(fastrand::f64()),
            ));
        }
        if !place.is_watched() {
            let wake = Arc::new(EntryWake(Arc::downgrade(entry)));
            let by = self.at_most(self.engine.command_deadline());
            return match self.engine.ask(|backend| backend.watch(&entry.name, wake, by)) {
                Ok(watch) => {
                    place.keep_watch(watch);
                    self.unwatched = 0;
                    // Between our look and the registration it may have been released: look again before sleeping.
                    Ok(Next::Again)
                }
                Err(failure) if failure.error().is_unavailable() => {
                    // The store answers, and does not tell of releases at the moment: ask it again and again.
                    self.unwatched += 1;
                    Ok(Next::Sleep(self.engine.clock.now() + pause(self.unwatched)))
                }
                Err(failure) => Err(failure.into_error()),
            };
        }
        // A message may be lost, so the holder's lease bounds the sleep, and never more than one of our own does.
        let lease = self.engine.settings.lease_time.duration();
        let bound = left.map_or(lease, |left| left.min(lease));
        Ok(Next::Sleep(now + bound.max(SHORTEST_SLEEP)))
    }

    /// The store could not be asked, or refused: what to do about it, or the error to give up with.
    fn failed(
        &mut self,
        place: &Place<'_>,
        failure: Failure,
        sent: Moment,
        outage: &mut Outage,
    ) -> Result<Next, Error> {
        let is_unknown = matches!(failure, Failure::Unknown(_));
        self.doubt |= is_unknown;
        let error = failure.into_error();
        if !error.is_unavailable() || (is_unknown && !self.engine.abilities.owned) {
            return Err(error);
        }
        let now = self.engine.clock.now();
        let since = *outage.since.get_or_insert(sent);
        place.set_outage(Some((since, error.clone().on(&place.entry().name))));
        outage.attempts += 1;
        let limit = self.limit(since);
        if outage.attempts == 1 && now.since(sent) < FIRST_PAUSE {
            // A connection that had died in the pool: one more try, at once, also for those who do not wait.
            return Ok(Next::Again);
        }
        if now >= limit {
            return Err(error);
        }
        Ok(Next::Sleep((now + pause(outage.attempts)).min(limit)))
    }

    /// The store granted it: make it ours, unless the answer took longer than the lease is good for.
    fn take(
        &self,
        place: Place<'_>,
        entry: &Arc<Entry>,
        holder: Holder,
        grant: Grant,
        sent: Moment,
    ) -> Result<Arc<Tenure>, Error> {
        let Plan { lease, time, .. } = *self.plan;
        let watch = match lease {
            Lease::Watched { renewals, .. } => {
                Some(Watched::from(sent, time, renewals, entry.earlier(time)))
            }
            Lease::Fixed(_) => None,
        };
        let tenure = Arc::new(Tenure::new(Beginning {
            name: entry.name.clone(),
            owner: self.owner,
            holder,
            tokens: grant.tokens,
            receipt: grant.receipt,
            doubt: self.doubt,
            sent,
            lease: time,
            watch,
            replication: self.plan.replication,
        }));
        let now = self.engine.clock.now();
        if now >= tenure.valid_until() {
            self.engine.clean_up(tenure.id(time), tenure.closing());
            return Err(Error::unavailable(format!(
                "the store granted it, but its answer took {:.1?}, and a lease of {time} is good for {:.1?} only: it was given back; ask for a longer lease",
                now.since(sent),
                time.validity()
            )));
        }
        let due =
            watch.map_or(tenure.valid_until(), |watch| watch.renew_at.min(tenure.valid_until()));
        let armed =
            place.occupy(&tenure, sent, now, |state| self.engine.timer.arm(entry, state, due));
        if let Err(error) = armed {
            self.engine.give_back(&tenure);
            self.engine.clean_up(tenure.id(time), tenure.closing());
            let returned = Returned { at: now, took: None, told: None };
            entry.vacate(&tenure, returned, self.engine.settings.hand_off);
            return Err(error);
        }
        self.engine.tell_acquired(&tenure, self.plan.start);
        Ok(tenure)
    }

    /// Ends the wait without the lock. A request that went unanswered may have taken it, or may do so yet.
    fn close(&self, entry: &Entry) {
        if self.doubt {
            let id =
                TenureId::new(entry.name.clone(), self.owner, self.plan.time, Receipt::default());
            self.engine.clean_up(id, Closing::IN_DOUBT);
        }
    }

    /// When to give up on what has kept us away since then.
    pub(super) fn limit(&self, since: Moment) -> Moment {
        self.plan.deadline.unwrap_or(since + self.engine.settings.outage_limit)
    }

    fn check_interrupt(&self) -> Result<(), Error> {
        self.interrupt.map_or(Ok(()), Registration::check)
    }

    fn at_most(&self, until: Moment) -> Moment {
        self.plan.deadline.map_or(until, |deadline| until.min(deadline))
    }

    fn tell_contended(&mut self, entry: &Entry) {
        if !std::mem::replace(&mut self.contended, true) {
            self.engine.events.emit(|| Event::Contended { lock: entry.name.clone() });
        }
    }
}

/// Since when the store cannot be asked, and how often it was tried.
#[derive(Default)]
pub(super) struct Outage {
    pub(super) since: Option<Moment>,
    pub(super) attempts: u32,
}

/// How long to wait after this many failures in a row: doubling, and half of it at random, so that clients that lost the
/// same store do not all come back at once.
pub(super) fn pause(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE * 2u32.saturating_pow(failures.min(10));
    doubled.min(LONGEST_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0)
}
