//! Taking a lock: queue locally, ask the store once it is our turn, and sleep until that may have changed.
//!
//! Register, look again, then sleep: nothing that happens between the look and the sleep is lost, because whoever we
//! registered with raises a signal that stays up. One absolute deadline is computed at the door; every sleep has it, or
//! an earlier bound.

pub(super) mod asking;
mod nested;
mod queue;
mod withdrawn;

use super::acquisition::{Acquisition, Beginning, MOST_HOLDS, Watched};
use super::entry::{Entered, Entry, Place, Wanted};
use super::insufficient_replicas::refuse;
use super::turns::Returned;
use super::{Engine, forked};
use crate::backend::{AcquisitionId, Grant, Receipt, ReleaseOptions};
use crate::clock::{Moment, Signal};
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

crate::sync::thread_local! {
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
    /// Whether the options said so, and not the settings.
    is_asked: bool,
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
    ) -> Result<Option<Arc<Acquisition>>, Error> {
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
    ) -> Result<Option<Arc<Acquisition>>, Error> {
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
            Entered::Nested(acquisition) => self.nest(entry, acquisition, &plan).map(Some),
            Entered::TooDeep => Err(Error::misuse(format!(
                "this thread holds it {MOST_HOLDS} times already, which is the limit"
            ))),
            Entered::Lost(acquisition) => Err(acquisition.lost_error()),
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
    pub(super) fn tell_acquired(&self, acquisition: &Acquisition, asked: Moment) {
        self.events.emit(|| Event::Acquired {
            lock: acquisition.name.clone(),
            token: acquisition.token,
            waited: self.clock.now().since(asked),
        });
    }

    fn plan(&self, options: &LockOptions) -> Result<Plan, Error> {
        let lease = options.lease.unwrap_or(self.settings.lease);
        let time = match options.lease {
            Some(lease) => lease.time()?,
            None => self.settings.lease_time,
        };
        if !self.abilities.renewable && matches!(lease, Lease::Watched { .. }) {
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
        let is_asked = options.lease.is_some();
        Ok(Plan { start, deadline, lease, is_asked, time, replication, asked_replication })
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
    /// Whether it was told that no lease ends it.
    endless: bool,
    /// Whether it was told that the store grants nothing for a while.
    paused: bool,
    /// How often in a row the store would not tell of releases.
    unwatched: u32,
    /// How often in a row several got in each other's way.
    divided: u32,
    /// How many tokens to have set aside. The same for every send of an attempt that may have been granted: the answer to
    /// a repetition is counted back from the last token by it.
    set_aside: u32,
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
            endless: false,
            paused: false,
            unwatched: 0,
            divided: 0,
            set_aside: 0,
        }
    }

    fn run(
        mut self,
        mut place: Place<'_>,
        holder: &Holder,
    ) -> Result<Option<Arc<Acquisition>>, Error> {
        let entry = Arc::clone(place.entry());
        match self.queue(&mut place, holder)? {
            Queued::Mine => {}
            Queued::Handed(acquisition) => return Ok(Some(acquisition)),
            Queued::Late => return Ok(None),
        }
        let answer = self.contend(&place, &entry);
        if let Ok(Some((grant, sent))) = answer {
            return self.take(place, &entry, holder.clone(), grant, sent).map(Some);
        }
        self.close(&entry);
        answer.map(|_| None)
    }

    /// The store granted it: make it ours, unless the answer took longer than the lease is good for.
    fn take(
        &self,
        place: Place<'_>,
        entry: &Arc<Entry>,
        holder: Holder,
        grant: Grant,
        sent: Moment,
    ) -> Result<Arc<Acquisition>, Error> {
        let Plan { lease, time, .. } = *self.plan;
        let watch = match lease {
            // Where renewals are numbered, they are to last for as long as they can.
            Lease::Watched { renewals, .. } => {
                let earlier = renewals.map_or(entry.earlier(time), |_| Duration::ZERO);
                Some(Watched::from(sent, time, renewals, earlier))
            }
            Lease::Fixed(_) => None,
        };
        let acquisition = Arc::new(Acquisition::new(Beginning {
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
        if now >= acquisition.valid_until() {
            self.engine.clean_up(acquisition.id(time), acquisition.closing());
            return Err(Error::unavailable(format!(
                "the store granted it, but its answer took {:.1?}, and a lease of {time} is good for {:.1?} only: it was given back; ask for a longer lease",
                now.since(sent),
                time.validity()
            )));
        }
        let due = watch.map_or(acquisition.valid_until(), |watch| {
            watch.renew_at.min(acquisition.valid_until())
        });
        let armed = place
            .occupy(&acquisition, sent, now, |state| self.engine.timer.arm(entry, state, now, due));
        if let Err(error) = armed {
            self.engine.give_back(&acquisition);
            self.engine.clean_up(acquisition.id(time), acquisition.closing());
            let returned = Returned { at: now, took: None, told: None };
            entry.vacate(self.engine, &acquisition, returned);
            return Err(error);
        }
        self.engine.tell_acquired(&acquisition, self.plan.start);
        Ok(acquisition)
    }

    /// Ends the wait without the lock. A request that went unanswered may have taken it, or may do so yet.
    fn close(&self, entry: &Entry) {
        if self.doubt {
            let id = AcquisitionId::new(
                entry.name.clone(),
                self.owner,
                self.plan.time,
                Receipt::default(),
            );
            self.engine.clean_up(id, ReleaseOptions::WITH_TOMBSTONE);
        }
    }

    /// When to give up on an outage that began at `since`, perhaps before this wait did.
    pub(super) fn limit(&self, since: Moment) -> Moment {
        let limit = self.engine.settings.outage_limit;
        self.plan.deadline.unwrap_or(since.max(self.plan.start) + limit)
    }

    fn check_interrupt(&self) -> Result<(), Error> {
        self.interrupt.map_or(Ok(()), Registration::check)
    }

    fn at_most(&self, until: Moment) -> Moment {
        self.plan.deadline.map_or(until, |deadline| until.min(deadline))
    }

    fn tell_endless(&mut self, entry: &Entry) {
        if !std::mem::replace(&mut self.endless, true) {
            self.engine.events.emit(|| Event::BusyWithoutExpiry { lock: entry.name.clone() });
        }
    }

    fn tell_paused(&mut self, entry: &Entry, left: Duration, why: &Error) {
        if !std::mem::replace(&mut self.paused, true) {
            let (lock, why) = (entry.name.clone(), why.clone());
            self.engine.events.emit(|| Event::Paused { lock, left, why });
        }
    }

    fn tell_contended(&mut self, entry: &Entry) {
        if !std::mem::replace(&mut self.contended, true) {
            self.engine.events.emit(|| Event::Contended { lock: entry.name.clone() });
        }
    }
}
