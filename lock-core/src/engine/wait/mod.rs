//! Acquiring a lock: queue locally, send attempts as the head of the queue, and sleep in between.
//!
//! Register, check again, then sleep: a signal stays raised, so no event between the check and the
//! sleep is missed. The call computes one absolute deadline when it begins. Sleeps end by that
//! time, except that a waiter behind the head waits a little longer for the answer to the head's
//! pending request.

mod attempt;
mod beside;
mod line;
mod local_wait;
mod nested;
mod replicas;
mod rolled_back;

use super::acquisition::{Acquisition, AcquisitionInit, RenewalPlan};
use super::queue::{Entered, LocalLock, LockRequest, QueueOwner, WaiterGuard};
use super::renew::FIRST_LOOK;
use super::{Engine, forked};
use crate::backend::owner::OwnerId;
use crate::backend::replication::Replication;
use crate::backend::token::TokenRange;
use crate::backend::{AcquisitionId, Grant, Receipt, ReleaseOptions, Tokens, call_backend};
use crate::call::interrupt::Registration;
use crate::call::options::{LockOptions, Progress};
use crate::engine::holder::Holder;
use crate::engine::replicas::refuse_unsupported;
use crate::error::{Error, ErrorKind};
use crate::observe::event::Event;
use crate::time::backoff::Backoff;
use crate::time::lease::{Lease, LeaseTime};
use crate::time::{Clock, Moment, Signal};
use attempt::{DirectAttempt, Granted, Outage};
use local_wait::Queued;
use std::cell::LazyCell;
use std::sync::Arc;
use std::time::Duration;

crate::sync::thread_local! {
    /// The thread's signal. One signal is enough, because a thread waits for one lock at a time. If
    /// an earlier wait has left the signal raised, the next wait makes one additional check.
    static SIGNAL: Arc<Signal> = Arc::new(Signal::new());
}

/// The parameters of a wait, from its options and the settings.
struct Plan {
    start: Moment,
    /// The absolute deadline; `None` waits for ever.
    deadline: Option<Moment>,
    /// True if this wait is a part of a longer wait without a deadline. Then the outage limit ends
    /// this wait, too.
    is_share: bool,
    lease: Lease,
    /// True if the lease comes from the options and not from the settings.
    is_lease_asked: bool,
    time: LeaseTime,
    replication: Replication,
    /// The replication policy in the options, if any.
    asked_replication: Option<Replication>,
}

impl Plan {
    fn new(engine: &Engine, wait: Option<Duration>, options: &LockOptions) -> Result<Self, Error> {
        let lease = options.lease.unwrap_or(engine.settings.lease);
        let time = match options.lease {
            Some(lease) => lease.time()?,
            None => engine.settings.lease_time,
        };
        if !engine.abilities.renewable && matches!(lease, Lease::Watched { .. }) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this wire format does not know who holds a lock, so the watchdog cannot keep it: \
                 ask for a fixed lease",
            ));
        }
        let replication = match options.replication {
            Some(asked) => {
                refuse_unsupported(&asked, &engine.abilities)?;
                asked.within(time)
            }
            None if engine.settings.replication.is_off() => Replication::off(),
            None => engine.settings.replication.within(time),
        };
        let start = engine.clock.now();
        let deadline = wait.map(|wait| start + wait);
        let asked_replication = options.replication;
        let (is_share, is_lease_asked) = (options.is_share, options.lease.is_some());
        Ok(Self {
            start,
            deadline,
            is_share,
            lease,
            is_lease_asked,
            time,
            replication,
            asked_replication,
        })
    }

    fn waits(&self) -> bool {
        self.deadline != Some(self.start)
    }

    /// Returns whether the watchdog renews the lock any number of times. Only such a lock may be
    /// handed to another thread.
    fn is_watched(&self) -> bool {
        matches!(self.lease, Lease::Watched { renewals: None, .. })
    }

    fn request(&self, holder: &Holder, signal: &Arc<Signal>) -> LockRequest {
        LockRequest {
            holder: holder.clone(),
            signal: Arc::clone(signal),
            since: self.start,
            watched: self.is_watched().then_some(self.time),
            replication: self.replication,
        }
    }

    fn is_late(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    fn at_most(&self, until: Moment) -> Moment {
        self.deadline.map_or(until, |deadline| until.min(deadline))
    }
}

/// Acquires the lock for the calling thread, whose number is `thread`, or for a single guard if
/// `None`. Returns `None` if the lock was busy until the deadline.
pub(crate) fn acquire(
    engine: &Engine,
    lock: &Arc<LocalLock>,
    thread: Option<u64>,
    wait: Option<Duration>,
    options: &LockOptions,
) -> Result<Option<Arc<Acquisition>>, Error> {
    let plan = Plan::new(engine, wait, options)?;
    if engine.origin.seems_elsewhere() {
        return Err(forked());
    }
    let beside = match thread {
        Some(thread) => beside::writer_of(engine, &lock.name, thread)?,
        None => None,
    };
    let signal = LazyCell::new(|| SIGNAL.try_with(Arc::clone).unwrap_or_default());
    let interrupt = options
        .interrupt
        .as_ref()
        .map(|interrupt| interrupt.register(&signal));
    if let Some(interrupt) = &interrupt {
        interrupt.check()?;
    }
    let holder = LazyCell::new(|| Holder::of(thread));
    let mut waiter = match lock.enter(engine, thread, plan.waits(), || {
        plan.request(&holder, &signal)
    })? {
        Entered::Nested(acquisition) if options.is_not_nested => {
            lock.end_hold(&acquisition);
            return Err(nested::refused());
        }
        Entered::Nested(acquisition) => {
            return nested::nest(engine, lock, acquisition, &plan).map(Some);
        }
        Entered::Busy => {
            engine.events.emit(|| Event::Contended {
                lock: lock.name.clone(),
            });
            return Ok(None);
        }
        Entered::Queued(waiter) => waiter,
    };
    let _waiting = engine.metrics().waiting(&lock.name);
    let mut wait = Wait {
        engine,
        lock,
        plan: &plan,
        progress: options.progress.as_ref(),
        signal: &signal,
        interrupt: interrupt.as_ref(),
        owner: engine.new_owner(),
        beside,
        was_sent: false,
        attempts: 0,
        asks_once: false,
        knows_limit: false,
        unknown_outcome: false,
        direct: None,
        unconfirmed: None,
        outage: Outage::default(),
        tokens: Tokens::None,
        told: EmittedOnce::default(),
        unwatched: attempt::BACKOFF,
        split_votes: 0,
    };
    match wait.queue(&mut waiter, &holder)? {
        Queued::Mine => {}
        Queued::Handed(acquisition) => return Ok(Some(acquisition)),
        Queued::Late => return Ok(None),
    }
    let granted = match lock.name.profile().contends_in_line && plan.waits() {
        true => wait.contend_in_line(&waiter, &holder),
        false => wait.contend(&waiter),
    };
    match granted {
        Ok(Some(granted)) => wait.take(waiter, holder.clone(), granted).map(Some),
        refused => {
            let line = wait.line().filter(|line| line.waiting() > 0);
            wait.close(line.is_some() || waiter.has_followers());
            refused.map(|_| None)
        }
    }
}

impl QueueOwner for Engine {
    fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    fn command_timeout(&self) -> Duration {
        self.settings.command_timeout
    }

    fn tell_acquired(&self, acquisition: &Acquisition, since: Moment) {
        self.events.emit(|| Event::Acquired {
            lock: acquisition.name.clone(),
            token: acquisition.token,
            waited: self.clock.now().since(since),
        });
    }

    fn decline(&self, lock: &Arc<LocalLock>, acquisition: &Arc<Acquisition>) {
        self.end_hold_async(lock, acquisition);
    }
}

/// One thread's wait for one lock.
struct Wait<'a> {
    engine: &'a Engine,
    lock: &'a Arc<LocalLock>,
    plan: &'a Plan,
    progress: Option<&'a Progress>,
    signal: &'a Arc<Signal>,
    interrupt: Option<&'a Registration<'a>>,
    /// The owner ID of the requests of this wait. Replaced after a revoked grant or a rolled-back
    /// attempt; a replaced ID is never used again.
    owner: OwnerId,
    /// This thread's write lock of the same name, if the wait is for the read lock.
    beside: Option<Arc<Acquisition>>,
    /// True if an attempt was sent.
    was_sent: bool,
    /// The number of sleeps on a busy lock.
    attempts: u32,
    /// True while the wait must end at the first answer that the lock is busy, whatever the
    /// deadline.
    asks_once: bool,
    /// True once the wait has queried how many permits the semaphore has, even without an answer.
    knows_limit: bool,
    /// True if a request of this owner went unanswered.
    unknown_outcome: bool,
    /// The last attempt that a release may grant directly.
    direct: Option<DirectAttempt>,
    /// A direct grant that the next attempt must confirm.
    unconfirmed: Option<Grant>,
    outage: Outage,
    /// The tokens to request. They must not change while an earlier attempt may be granted, because
    /// the store computes the answer to a repetition backwards from the last token.
    tokens: Tokens,
    told: EmittedOnce,
    /// The back-off while the store cannot notify of releases.
    unwatched: Backoff,
    /// The number of consecutive split votes.
    split_votes: u32,
}

/// The events that a wait emits at most once: true if the event was emitted.
#[derive(Default)]
struct EmittedOnce {
    contended: bool,
    endless: bool,
    paused: bool,
}

impl Wait<'_> {
    /// Makes the acquisition of a grant. Releases the lock and fails if the answer took longer than
    /// the lease is valid, or if the timer's thread cannot be started.
    fn take(
        &self,
        waiter: WaiterGuard<'_>,
        holder: Holder,
        Granted {
            grant,
            sent,
            since,
            lease: granted,
        }: Granted,
    ) -> Result<Arc<Acquisition>, Error> {
        let (engine, lock) = (self.engine, self.lock);
        let Plan { lease, time, .. } = *self.plan;
        let grant_limit = grant.limit;
        let name = lock.name.granted(grant.count);
        let renewal = match lease {
            // No early renewal if the number of renewals is limited: an early one would shorten the
            // total time.
            Lease::Watched {
                renewals: Some(count),
                ..
            } => Some(RenewalPlan::from(sent, time, Some(count), Duration::ZERO)),
            Lease::Watched { renewals: None, .. } => {
                let mut plan = RenewalPlan::from(sent, time, None, lock.earlier(time));
                // After an early renewal the store reports changes of the lock. There is no early
                // renewal if it would wait for replicas, or if the lock is shared.
                let first = engine.abilities.first_renewal;
                let is_reported = self.plan.replication.is_off() && !lock.name.profile().shared;
                if let Some(first) = first.filter(|_| is_reported) {
                    plan.add(sent + first);
                }
                if granted < time {
                    plan.add(RenewalPlan::next(sent, granted));
                }
                Some(plan)
            }
            Lease::Fixed(_) => None,
        };
        // A reader whose thread holds the write lock uses the token of the write lock. The store
        // would return the last token that it reserved for hand-offs, which may be larger.
        let own = |writer: &Arc<Acquisition>| writer.token.and_then(|it| TokenRange::new(it, it));
        // If the writer was lost meanwhile, the store's token is used, because the writer's
        // successors may have larger tokens than the writer.
        let is_beside = |writer: &&Arc<Acquisition>| engine.is_valid(writer);
        let writer = self.beside.as_ref().filter(is_beside);
        let tokens = writer.map_or(grant.tokens, own);
        let replication = self.plan.replication;
        let lead = engine.replica_lead(&lock.name, time, replication);
        let asked = engine.skipped.reading_at(sent);
        let acquisition = Arc::new(Acquisition::new(AcquisitionInit {
            name,
            owner: self.owner,
            holder,
            tokens,
            receipt: grant.receipt,
            unknown_outcome: self.unknown_outcome,
            sent: asked,
            since,
            granted,
            lease: time,
            is_lease_asked: self.plan.is_lease_asked,
            renewal,
            replication,
            lead,
            counted: engine.metrics().held(&lock.name),
        }));
        let mut reading = engine.reading();
        if acquisition.trusted_at(reading).is_zero() && acquisition.is_valid_at(reading.now) {
            self.ask_in_doubt(&acquisition);
            reading = engine.reading();
        }
        let now = reading.now;
        if acquisition.trusted_at(reading).is_zero() {
            engine.clean_up(acquisition.to_release());
            return Err(self.too_late(reading.since(asked), lead));
        }
        let due = acquisition
            .next_check(&acquisition.lock())
            .min(now + FIRST_LOOK);
        let arm = |state: &mut _| engine.timer.arm(lock, state, now, due);
        if let Err(error) = waiter.occupy(&acquisition, now, arm) {
            engine.mark_released(&acquisition);
            // Where no thread can be started, nothing can be cleaned up in the background. So send
            // the release from this thread.
            let (id, options) = acquisition.to_release();
            engine.leave_async(&id, options);
            lock.released(&acquisition, now);
            return Err(error);
        }
        engine.shorten_if_lead_grew(&acquisition, time, lead);
        engine.tell_acquired(&acquisition, self.plan.start);
        if let (Some((asked, _)), Some(stored)) = (lock.name.permits(), grant_limit)
            && asked != stored
        {
            engine.tell_other_limit(&lock.name, asked, stored);
        }
        Ok(acquisition)
    }

    /// Verifies a grant whose answer is too late only according to the time of day, which may have
    /// been set meanwhile.
    fn ask_in_doubt(&self, acquisition: &Acquisition) {
        let sent = self.engine.reading();
        let by = sent.now + self.engine.settings.command_timeout;
        let id = acquisition.id(self.plan.time);
        if let Ok(Some(holder)) = call_backend(|| self.engine.store()?.verify(&id, by)) {
            acquisition.confirmed(sent, holder.remaining);
        }
    }

    fn too_late(&self, took: Duration, lead: Duration) -> Error {
        let time = self.plan.time;
        let ahead = match lead.is_zero() {
            true => String::new(),
            false => format!(" (the clock of a replica may be {lead:.1?} ahead)"),
        };
        Error::unavailable(format!(
            "the store granted it, but its answer took {took:.1?}, and a lease of {time} is good \
             for {:.1?} only{ahead}: it was given back; ask for a longer lease",
            time.validity().saturating_sub(lead)
        ))
    }

    /// Ends the use of the present owner ID without the lock. Cleans up a request with unknown
    /// outcome, and removes the waiter from the store, where it would keep other clients out. With
    /// `has_followers`, other threads of this client wait behind this one and inherit its place in
    /// the store's queue, if the kind of lock allows that.
    fn close(&self, has_followers: bool) {
        let is_queued = self.direct.is_some()
            || self.was_sent && self.plan.waits() && self.shown_every().is_some();
        let options = match self.unknown_outcome {
            true => ReleaseOptions::WITH_TOMBSTONE,
            false if is_queued => ReleaseOptions::WITHOUT_TOMBSTONE,
            false => return,
        };
        let (name, time) = (self.lock.name.clone(), self.plan.time);
        let is_shared_place = name.profile().hands_off || name.profile().contends_in_line;
        let id = AcquisitionId::new(name, self.owner, time, Receipt::default());
        let options = options.keeps_place(has_followers && is_shared_place);
        // If the store may be unreachable, or the request would be waited for, it is not sent on
        // the caller's thread.
        let would_wait = self.engine.abilities.waits_for_releases;
        match self.unknown_outcome || self.outage.since.is_some() || would_wait {
            true => self.engine.clean_up((id, options)),
            false => self.engine.leave_async(&id, options),
        }
    }

    /// Returns when this wait gives up in an outage that began at `since`, perhaps before this
    /// wait: at the deadline if there is one, otherwise after the outage limit. A part of a longer
    /// wait gives up at the earlier of the two.
    fn limit(&self, since: Moment) -> Moment {
        let limit = since.max(self.plan.start) + self.engine.settings.outage_limit;
        match self.plan.deadline {
            Some(deadline) if self.plan.is_share => deadline.min(limit),
            Some(deadline) => deadline,
            None => limit,
        }
    }

    fn check_interrupt(&self) -> Result<(), Error> {
        self.interrupt.map_or(Ok(()), Registration::check)
    }

    fn tell_endless(&mut self) {
        if !std::mem::replace(&mut self.told.endless, true) {
            let lock = self.lock.name.clone();
            self.engine
                .events
                .emit(|| Event::BusyWithoutExpiry { lock });
        }
    }

    fn tell_paused(&mut self, left: Duration, why: &Error) {
        if !std::mem::replace(&mut self.told.paused, true) {
            let (lock, why) = (self.lock.name.clone(), why.clone());
            self.engine
                .events
                .emit(|| Event::Paused { lock, left, why });
        }
    }

    fn tell_contended(&mut self) {
        if !std::mem::replace(&mut self.told.contended, true) {
            let lock = &self.lock.name;
            self.engine
                .events
                .emit(|| Event::Contended { lock: lock.clone() });
        }
    }
}
