//! The rules for renewals: the due time, the meaning of an answer, and the retry after a failure.

use crate::backend::replication::Replication;
use crate::backend::{RENEW_BATCH, Renewal};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, GuardState, RenewalPlan};
use crate::engine::queue::LocalLock;
use crate::engine::renew::{PendingExtension, RenewalHandler, RenewalJob, TICK};
use crate::engine::replicas::{insufficient_replicas, weigh_renewal};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::observe::event::Event;
use crate::observe::loss::LossCause;
use crate::time::Moment;
use crate::time::lease::LeaseTime;
use std::sync::Arc;
use std::time::Duration;

/// The shortest full pause before a failed renewal is sent again; half of each full pause is
/// random. A full pause is a thirtieth of the lease, within this limit and the next, and at most a
/// sixth of the remaining validity if the lock has not had its full lease yet, so that with the
/// default settings at least twenty attempts fit before the deadline if each fails at once, and
/// about seven if each waits for an answer.
const SHORTEST_RETRY: Duration = Duration::from_millis(10);
/// The longest full pause, so that a lock with a long lease is renewed soon after an outage.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The longest time by which a renewal may be sent early, together with others that are due. The
/// time is a thirtieth of the lease, which is a tenth of the time between two renewals, at least a
/// tick and at most this. It is a tick for an inserted early renewal, for a limited number of
/// renewals, and after a failure. Renewals that are sent together are due together from then on, so
/// that 1,000 locks cost one request a second instead of 13.
const LONGEST_SLACK: Duration = Duration::from_secs(1);

/// The result of checking an acquisition, with the time of the next check.
#[derive(Clone, Copy)]
enum CheckResult {
    Fine {
        next: Moment,
    },
    Renew {
        lease: LeaseTime,
        left: Option<Duration>,
        slack: Duration,
        next: Moment,
    },
    UsedUp {
        next: Moment,
    },
    Over(LossCause),
    /// The acquisition is lost, or its release has begun.
    Released,
}

/// A report of the store that the lock changed during a renewal. The renewal may have missed the
/// change.
enum StoreChange {
    None,
    Reported,
}

impl RenewalHandler for Engine {
    fn check(&self, lock: Arc<LocalLock>, now: Moment) -> Option<RenewalJob> {
        // Detect skipped time before the renewal is sent, because a renewal confirms the lock only
        // for the skipped time that was noticed before.
        let _ = self.reading();
        let fired = lock.lock().timer.take();
        // A thread may have re-armed the timer of this lock since it fired.
        if let Some((key, _)) = fired.filter(|(_, due)| *due > now) {
            self.timer.cancel(key);
        }
        self.renewal_due(lock, now)
    }

    fn renewal_answered(
        &self,
        job: &RenewalJob,
        sent: Moment,
        answer: Result<Renewal, Error>,
    ) -> Option<RenewalJob> {
        let RenewalJob {
            lock,
            acquisition,
            lease,
            extension,
            ..
        } = job;
        let answer = answer.and_then(|it| weigh_renewal(&self.events, acquisition, it));
        let result = match answer {
            Ok(Renewal::Extended | Renewal::Unacknowledged(_) | Renewal::Unreplicated(_)) => {
                self.renewal_succeeded(lock, acquisition, sent, *lease, extension.is_none())
            }
            Ok(Renewal::Gone) => {
                acquisition.lock().renewing = false;
                self.declare_lost(lock, acquisition, LossCause::Gone);
                Err(acquisition.lost_error())
            }
            // A value that is not a lock is under the key, so the lock is gone.
            Err(error) if error.is_foreign_format() => {
                Err(self.declare_overwritten(lock, acquisition, error))
            }
            Err(error) => {
                self.metrics().renewal_failed(&acquisition.name);
                let error = error.on(&acquisition.name);
                if extension.is_none() {
                    self.renewal_failed(lock, acquisition, sent, error.clone());
                }
                Err(error)
            }
        };
        let has_changed = matches!(result, Ok(StoreChange::Reported));
        if let Some(extension) = extension {
            extension.answer(result.map(drop));
        }
        has_changed
            .then(|| self.renewal_of_changed(Arc::clone(lock), self.clock.now()))
            .flatten()
    }

    fn cleanup_failed(&self, lock: &LockName, error: Error) {
        self.events.emit(|| Event::ReleaseFailed {
            lock: lock.clone(),
            error: error.on(lock),
        });
    }
}

fn examine(acquisition: &Acquisition, now: Moment) -> CheckResult {
    let mut inner = acquisition.lock();
    let end = acquisition.valid_until();
    if acquisition.has_ended() {
        return CheckResult::Released;
    }
    if now >= end {
        return CheckResult::Over(LossCause::Expired);
    }
    // A fixed lease outlives its thread, because the caller chose how long it lasts.
    if inner.renewal.is_some() && acquisition.holder.has_ended() {
        return CheckResult::Over(LossCause::HolderEnded);
    }
    let slack = inner.renewal.map_or(TICK, |plan| slack(acquisition, &plan));
    match inner.renewal {
        Some(plan) if now + slack <= plan.due => CheckResult::Fine {
            next: plan.due.min(end),
        },
        Some(RenewalPlan { left: Some(0), .. }) => {
            acquisition.give_up_renewing(&mut inner);
            CheckResult::UsedUp { next: end }
        }
        Some(plan) if !inner.renewing => {
            inner.renewing = true;
            // Armed for the renewal after this one, so that an answer in time need not arm the
            // timer again.
            let next = RenewalPlan::next(now, plan.ttl).min(end);
            CheckResult::Renew {
                lease: plan.ttl,
                left: acquisition.left_of_short_lease(&inner, now),
                slack,
                next,
            }
        }
        _ => CheckResult::Fine { next: end },
    }
}

/// Returns how long before its due time a renewal may be sent.
///
/// At least a tick: a check that finds a renewal due arms the timer for the next renewal, but the
/// renewal is sent a little later, so the next renewal is due a little after its timer fires.
fn slack(acquisition: &Acquisition, plan: &RenewalPlan) -> Duration {
    let is_regular = plan.is_regular() && acquisition.recorded_state() == GuardState::Held;
    if is_regular {
        (plan.ttl.duration() / 30).clamp(TICK, LONGEST_SLACK)
    } else {
        TICK
    }
}

impl Engine {
    /// Returns the renewal of a held lock, if it is due, and arms the timer for the next check.
    /// Declares the loss of a lock that has expired, or whose thread has ended without a release.
    /// `now` was read shortly before: if a lock expires in between, the next check or the answer to
    /// the renewal detects it.
    fn renewal_due(&self, lock: Arc<LocalLock>, now: Moment) -> Option<RenewalJob> {
        let mut state = lock.lock();
        state.free_unused();
        let abandoned = state.take_abandoned();
        if !abandoned.is_empty() {
            drop(state);
            self.drop_detached(&lock, &abandoned);
            state = lock.lock();
        }
        self.arm_for_lost(&lock, &mut state, now);
        let acquisition = state
            .current()
            .filter(|it| !it.has_ended())
            .map(Arc::clone)?;
        let finding = examine(&acquisition, now);
        let next = match finding {
            CheckResult::Fine { next }
            | CheckResult::Renew { next, .. }
            | CheckResult::UsedUp { next } => next,
            CheckResult::Over(cause) => {
                drop(state);
                self.declare_lost(&lock, &acquisition, cause);
                return None;
            }
            CheckResult::Released => return None,
        };
        // A failure to arm is ignored: the timer's thread runs as long as any lock is held.
        let _armed = self.timer.arm(&lock, &mut state, now, next);
        drop(state);
        match finding {
            CheckResult::Renew {
                lease, left, slack, ..
            } => Some(RenewalJob {
                lock,
                acquisition,
                lease,
                left,
                slack,
                extension: None,
            }),
            CheckResult::UsedUp { next: end } => {
                let left = end.since(self.clock.now());
                self.events.emit(|| Event::RenewalsUsedUp {
                    lock: acquisition.name.clone(),
                    left,
                });
                None
            }
            CheckResult::Fine { .. } | CheckResult::Over(_) | CheckResult::Released => None,
        }
    }

    /// Renews the held locks of these names at once (`None`: all held locks), because the store
    /// reported a change or may have lost them. Skips locks with a fixed lease, and those with a
    /// limited number of renewals. With names, also skips the locks that several owners may hold.
    pub(in crate::engine) fn renew_now(&self, names: Option<&[LockName]>) {
        if self.is_forked() {
            return;
        }
        // The store reports the changed name without the kind of the lock.
        let of_name = |name| self.registry.exclusive(name);
        let locks = match names {
            Some(names) => names.iter().flat_map(of_name).collect(),
            None => self.registry.all(),
        };
        let (now, mut jobs) = (self.clock.now(), Vec::new());
        for lock in locks {
            jobs.extend(self.renewal_of_changed(lock, now));
            if jobs.len() == RENEW_BATCH {
                self.workers.renew(&mut jobs);
            }
        }
        self.workers.renew(&mut jobs);
    }

    /// Returns the renewal of a lock that the store reports as changed, if it can be sent now. If a
    /// renewal is under way, another one follows it.
    fn renewal_of_changed(&self, lock: Arc<LocalLock>, now: Moment) -> Option<RenewalJob> {
        let is_due = lock
            .lock()
            .current()
            .is_some_and(|acquisition| acquisition.make_due(now));
        is_due.then(|| self.renewal_due(lock, now)).flatten()
    }

    /// Returns the time by which a lease may end earlier on a replica that may be promoted.
    pub(crate) fn replica_lead(
        &self,
        name: &LockName,
        lease: LeaseTime,
        replication: Replication,
    ) -> Duration {
        match replication.is_off() {
            true => Duration::ZERO,
            false => self
                .backend
                .replicated()
                .map_or(Duration::ZERO, |replicas| {
                    replicas.replica_lead(name, lease, replication)
                }),
        }
    }

    /// Shortens the validity of held locks if the lead of the replicas has grown beyond `lead`,
    /// with which the validity of this acquisition was computed. If the lead grew before this
    /// validity was stored, the notice of the growth did not reach the acquisition.
    pub(in crate::engine) fn shorten_if_lead_grew(
        &self,
        acquisition: &Acquisition,
        lease: LeaseTime,
        lead: Duration,
    ) {
        if self.replica_lead(&acquisition.name, lease, acquisition.replication) > lead {
            self.shorten_for_replicas();
        }
    }

    /// Shortens the validity of held locks with a replication policy, because the clocks of
    /// replicas are now known to be further ahead. Locks whose shortened validity has ended are
    /// lost.
    pub(in crate::engine) fn shorten_for_replicas(&self) {
        if self.is_forked() {
            return;
        }
        let mut jobs = Vec::new();
        for (lock, acquisition) in self.held() {
            let lease = acquisition.lock().lease;
            let lead = self.replica_lead(&acquisition.name, lease, acquisition.replication);
            let mut inner = acquisition.lock();
            if !acquisition.shortened(&mut inner, lead) {
                continue;
            }
            let now = self.clock.now();
            if now >= acquisition.valid_until() {
                inner.set_last_failure(insufficient_replicas(format!(
                    "the clock of a replica is {lead:.1?} ahead of its master's, so the lease may \
                     be over there: set it right, and run chrony or ntpd on every machine"
                )));
            }
            drop(inner);
            jobs.extend(self.renewal_due(lock, now));
        }
        self.workers.renew(&mut jobs);
    }

    fn renewal_succeeded(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
        sent: Moment,
        lease: LeaseTime,
        by_timer: bool,
    ) -> Result<StoreChange, Error> {
        let lead = self.replica_lead(&acquisition.name, lease, acquisition.replication);
        let mut state = lock.lock();
        let mut inner = acquisition.lock();
        if by_timer {
            inner.renewing = false;
        }
        if acquisition.has_ended() {
            // The acquisition has ended meanwhile. The release or the cleanup ends the extended
            // lease.
            drop(inner);
            return Err(acquisition.lost_error());
        }
        let (now, end) = (self.clock.now(), acquisition.valid_until());
        let left = end.since(sent);
        let sent = self.skipped.reading_at(sent);
        if now >= end || !acquisition.extended(&mut inner, sent, lease, lead) {
            // A loss is final, because a successor may have begun its work. But the store keeps the
            // lock for a lease from now on, so release it.
            inner.overlong = true;
            drop((inner, state));
            self.declare_lost(lock, acquisition, LossCause::Expired);
            return Err(acquisition.lost_error());
        }
        inner.renewal_succeeded();
        // If this is the longest lease that was requested so far, the store does not keep the lock
        // beyond the new validity.
        inner.overlong &= lease < inner.lease;
        let mut suspended = false;
        let changed = by_timer && std::mem::take(&mut inner.changed);
        if let Some(plan) = &mut inner.renewal {
            if by_timer {
                plan.renewed(sent.now);
            }
        } else {
            suspended = acquisition.recorded_state() == GuardState::Suspended; // no renewals left
        }
        acquisition.set_suspended(&mut inner, suspended);
        let next = acquisition.next_check(&inner);
        drop(inner);
        let _armed = self.timer.arm(lock, &mut state, now, next);
        drop(state);
        self.shorten_if_lead_grew(acquisition, lease, lead);
        self.events.emit(|| Event::Renewed {
            lock: acquisition.name.clone(),
            left,
        });
        Ok(if changed {
            StoreChange::Reported
        } else {
            StoreChange::None
        })
    }

    fn renewal_failed(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
        sent: Moment,
        error: Error,
    ) {
        let mut state = lock.lock();
        let mut inner = acquisition.lock();
        inner.renewing = false;
        if acquisition.has_ended() {
            return;
        }
        let now = self.clock.now();
        let is_news = inner.note_failure(&error);
        acquisition.set_suspended(&mut inner, true);
        let left = acquisition.left_of_short_lease(&inner, now);
        if let Some(plan) = &mut inner.renewal {
            let pause = plan.ttl.duration() / 30;
            let pause = pause.min(left.map_or(pause, |left| left / 6));
            let pause = pause.clamp(SHORTEST_RETRY, LONGEST_RETRY);
            // Half of the pause is random, so that the locks of a node are not all retried at once.
            plan.due = now.max(sent) + pause / 2 + pause.mul_f64(fastrand::f64() / 2.0);
        }
        let next = acquisition.next_check(&inner);
        drop(inner);
        let _armed = self.timer.arm(lock, &mut state, now, next);
        drop(state);
        let left = acquisition.remaining_at(now);
        if is_news {
            let lock = acquisition.name.clone();
            self.events
                .emit(|| Event::RenewalFailed { lock, error, left });
        }
    }

    /// Extends the lease to at least `lease` from now. Waits until the store confirms that, at most
    /// for the time of two requests.
    pub(crate) fn extend(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
        lease: LeaseTime,
    ) -> Result<(), Error> {
        self.must_hold(lock, acquisition)?;
        if !self.abilities.renewable {
            let why = "this wire format does not say who holds a lock, so it cannot be extended";
            return Err(Error::new(ErrorKind::Unsupported, why).on(&acquisition.name));
        }
        {
            // From here on the store may keep the lock for this lease, whatever the answer.
            let mut inner = acquisition.lock();
            inner.lease = inner.lease.max(lease);
            inner.overlong = true;
        }
        let extension = Arc::new(PendingExtension::default());
        let job = RenewalJob {
            lock: Arc::clone(lock),
            acquisition: Arc::clone(acquisition),
            lease,
            // An extension is sent once, so its time limit need not leave room for a second
            // attempt.
            left: None,
            slack: Duration::ZERO,
            extension: Some(Arc::clone(&extension)),
        };
        self.workers.renew(&mut vec![job]);
        // Another batch may be under way when this one is queued, so wait for the time of two
        // requests.
        let time = self.settings.command_timeout + acquisition.replication.patience();
        let by = self.clock.now() + time * 2;
        loop {
            if let Some(result) = extension.result.lock().take() {
                return result;
            }
            if self.clock.now() >= by {
                return Err(
                    Error::unavailable("the extension was not confirmed in time")
                        .on(&acquisition.name),
                );
            }
            self.clock.wait(&extension.signal, by);
        }
    }
}
