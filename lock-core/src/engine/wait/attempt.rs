//! The attempts of a wait: requests to the store until it grants the lock or the deadline passes,
//! and the reaction to each answer.

use super::Wait;
use crate::backend::owner::OwnerId;
use crate::backend::{Answer, Attempt, Failure, Grant, Waking, call_backend};
use crate::engine::queue::{StoreOutage, WaiterGuard};
use crate::error::Error;
use crate::time::backoff::Backoff;
use crate::time::lease::LeaseTime;
use crate::time::{Moment, Woken};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// The shortest first pause before an unavailable store is queried again, so that a short fault
/// costs little time. Each further pause is twice as long, with jitter, up to the next limit.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause between two attempts at an unreachable store, so that waiting clients do not
/// load the store in an outage.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
pub(super) const BACKOFF: Backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);

/// The shortest sleep on a busy lock, because a lease with less than a millisecond left is reported
/// as zero, which would cause a busy loop.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The number of attempts that a waiter sends within its presence (the time for which the store
/// counts a waiter as present after an attempt), so that some may be late or lost.
const ATTEMPTS_OF_A_PRESENCE: u32 = 3;

/// The longest time between two attempts of a waiter whose death the store notices by itself,
/// unless a third of the configured presence is longer. It may be long because the store needs no
/// attempts to notice a dead waiter.
const PATIENT_ATTEMPTS: Duration = Duration::from_secs(3);

/// The time limit for a watch that begins before the first attempt. Only a broken subscription
/// takes that long, because a client that is still subscribed sends no request for the watch. After
/// this time the attempt is sent without a watch.
const EARLY_WATCH: Duration = Duration::from_millis(100);

/// A grant of the store to this wait.
pub(super) struct Granted {
    pub(super) grant: Grant,
    /// The time at which the granted request was sent.
    pub(super) sent: Moment,
    /// The beginning of the hold: `sent`, or, for a direct grant, the time at which this thread
    /// fetched the grant.
    pub(super) since: Moment,
    /// The granted lease, counted from `sent`.
    pub(super) lease: LeaseTime,
}

/// The next action after an attempt.
pub(super) enum Next {
    Take(Granted),
    Again,
    Sleep(Moment),
    /// Sleep until this moment; a notified release does not end the sleep.
    Pause(Moment),
    GiveUp,
}

/// The last attempt that a release may grant directly.
pub(super) struct DirectAttempt {
    owner: OwnerId,
    number: NonZeroU64,
    sent: Moment,
    /// The lease of a direct grant.
    lease: LeaseTime,
}

/// The beginning of an outage of the store, and the back-off since then.
pub(super) struct Outage {
    pub(super) since: Option<Moment>,
    pub(super) backoff: Backoff,
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            since: None,
            backoff: BACKOFF,
        }
    }
}

impl<'a> Wait<'a> {
    /// Returns the longest time between two attempts at which the store still counts this waiter as
    /// waiting. `None` unless waiters for the lock queue in the store, or it is a write lock, whose
    /// waiters keep new readers out.
    pub(super) fn shown_every(&self) -> Option<Duration> {
        let name = &self.lock.name;
        if !self.engine.queues(name) && name.profile().readers.is_none() {
            return None;
        }
        let first = self.engine.settings.fair_presence / ATTEMPTS_OF_A_PRESENCE;
        Some(match self.is_patient() {
            // The time doubles with each sleep: a waiter that has waited for long will probably
            // wait for longer still.
            true => (first * (1 << self.attempts.min(8))).min(Self::longest_pause(first)),
            false => first,
        })
    }

    /// Returns whether the store notices by itself if this waiter is dead.
    fn is_patient(&self) -> bool {
        let profile = self.lock.name.profile();
        self.engine.abilities.queues_waiters && profile.direct_grant && !profile.queued_in_store
    }

    fn longest_pause(first: Duration) -> Duration {
        PATIENT_ATTEMPTS.max(first)
    }

    /// Returns the time for which this waiter counts as present after each of its attempts.
    fn presence(&self) -> Duration {
        let presence = self.engine.settings.fair_presence;
        match self.is_patient() {
            true => Self::longest_pause(presence / ATTEMPTS_OF_A_PRESENCE) * ATTEMPTS_OF_A_PRESENCE,
            false => presence,
        }
    }

    /// Sends attempts until the store grants the lock or the deadline passes. Returns `None` if the
    /// lock was busy until then, or, with `asks_once`, at the first answer that the lock is busy.
    /// Fails when the outage limit is reached.
    pub(super) fn contend(&mut self, waiter: &WaiterGuard<'_>) -> Result<Option<Granted>, Error> {
        let clock = &self.engine.clock;
        self.outage.since = waiter.outage_since();
        if self
            .outage
            .since
            .is_some_and(|since| clock.now() >= self.limit(since))
            && let Some(error) = waiter.why_not()
        {
            return Err(error); // earlier heads used up the outage limit
        }
        if self.plan.waits() && self.outage.since.is_none() && waiter.was_watched_lately() {
            // A watch that begins before the first attempt saves the second attempt, which would
            // otherwise follow the watch. If the watch cannot begin now, `busy` tries again.
            if self.begin_watch(waiter, clock.now() + EARLY_WATCH).is_err() {
                let _pause = self.unwatched.next();
            }
        }
        loop {
            // Clear the signal before the request, because the request sees every earlier release.
            // Check the interrupt after clearing: otherwise an interrupt in between would not end
            // the sleep.
            self.signal.take();
            self.check_interrupt()?;
            if let Some(granted) = self.direct_grant(waiter) {
                return Ok(Some(granted));
            }
            let sent = self.engine.reading().now;
            let (attempt, by) = self.next_attempt(waiter, sent);
            let answer = call_backend(|| self.engine.store()?.acquire(&attempt, by));
            match self.answered(waiter, answer, sent)? {
                Next::Take(granted) => return Ok(Some(granted)),
                Next::Again => {}
                Next::GiveUp => return Ok(None),
                Next::Pause(until) => self.pause(until)?,
                Next::Sleep(until) => {
                    // Send one more attempt at the deadline, too: the lock may have just been
                    // released, so the result "busy" would be wrong.
                    let _woken: Woken = clock.wait(self.signal, self.plan.at_most(until));
                }
            }
        }
    }

    /// Makes the grant of an attempt that was sent at `sent`.
    pub(super) fn granted(&self, grant: Grant, sent: Moment) -> Granted {
        Granted {
            grant,
            sent,
            since: sent,
            lease: self.plan.time,
        }
    }

    /// Returns the grant if another owner's release has granted the lock to the last attempt of
    /// this waiter. Ignores a grant to an earlier attempt, a grant with less than half of its lease
    /// left, and a grant by a server that was replaced: the next attempt then finds whether this
    /// owner holds the lock. That attempt is also needed if the lease is fixed, if the number of
    /// renewals is limited, or if replicas must confirm the grant.
    fn direct_grant(&mut self, waiter: &WaiterGuard<'_>) -> Option<Granted> {
        let direct = self.direct.as_ref()?;
        let granted = waiter.take_direct_grant()?;
        let is_last = granted.attempt == direct.number && direct.owner == self.owner;
        let is_early = self.engine.passed_since(direct.sent) < direct.lease.duration() / 2;
        let is_kept = self.plan.is_watched() && self.plan.replication.is_off();
        // Checked last: the server may be replaced at any time.
        let is_taken = is_last && is_early && is_kept && granted.counts();
        let grant = granted.grant;
        if !is_taken {
            self.unconfirmed = Some(grant).filter(|_| direct.owner == self.owner);
            return None;
        }
        let (sent, lease) = (direct.sent, direct.lease);
        self.end_outage(waiter);
        Some(Granted {
            grant,
            sent,
            since: self.engine.clock.now(),
            lease,
        })
    }

    /// Returns the time limit for the answer to an attempt.
    pub(super) fn answer_time(&self) -> Duration {
        self.engine.settings.command_timeout + self.plan.replication.patience()
    }

    /// Makes the attempt that is sent at `sent`. Also returns the time at which its answer is due.
    fn next_attempt(&mut self, waiter: &WaiterGuard<'_>, sent: Moment) -> (Attempt<'a>, Moment) {
        let settings = &self.engine.settings;
        let by = sent + self.answer_time();
        let (has_followers, is_watched) = waiter.asks(by, self.owner);
        let profile = self.lock.name.profile();
        let is_mutex = !profile.shared && profile.readers.is_none();
        let may_be_granted = self.unknown_outcome || is_mutex && self.direct.is_some();
        if !may_be_granted && self.has_tokens() {
            self.tokens = self.lock.tokens(has_followers && self.plan.is_watched());
        }
        let attempt = Attempt::new(&self.lock.name, self.owner, self.plan.time)
            .tokens(self.tokens)
            .replication(self.plan.replication)
            .beside(self.beside.as_ref().map(|writer| writer.owner))
            .waits(self.plan.waits())
            .presence(self.presence())
            .direct_lease(settings.fair_presence)
            .direct(self.number_attempt(is_watched, sent))
            .label(settings.label.as_ref());
        self.was_sent = true;
        (attempt, by)
    }

    /// Returns whether a grant of this lock has a fencing token.
    fn has_tokens(&self) -> bool {
        self.engine.settings.tokens && self.lock.name.profile().tokens
    }

    /// Returns the number of the attempt that is sent at `sent`, if its caller waits and the
    /// attempt may enter the store's queue, where a release may grant the lock to it. Without a
    /// watch an attempt enters the queue only for a kind that is granted in strict order, so that
    /// an attempt at a free lock costs nothing more.
    ///
    /// The lease of a direct grant is at most the configured presence; the watchdog's first renewal
    /// extends it to the requested lease.
    fn number_attempt(&mut self, is_watched: bool, sent: Moment) -> Option<NonZeroU64> {
        let profile = self.lock.name.profile();
        let is_queued = profile.queued_in_store || is_watched && self.shown_every().is_some();
        if !(is_queued && self.plan.waits()) {
            return None;
        }
        let lease = LeaseTime::new(self.engine.settings.fair_presence)
            .map_or(self.plan.time, |it| it.min(self.plan.time));
        // The number is the time in microseconds, and greater than that of the attempt before.
        let micros = sent.as_nanos() / 1_000;
        let number = NonZeroU64::new(micros).unwrap_or(NonZeroU64::MIN);
        let last = self.direct.as_ref().map(|direct| direct.number);
        let number = last.map_or(number, |last| number.max(last.saturating_add(1)));
        self.direct = Some(DirectAttempt {
            owner: self.owner,
            number,
            sent,
            lease,
        });
        Some(number)
    }

    /// Decides the next action after the answer to the request that was sent at `sent`.
    fn answered(
        &mut self,
        waiter: &WaiterGuard<'_>,
        answer: Result<Answer, Failure>,
        sent: Moment,
    ) -> Result<Next, Error> {
        match answer {
            Ok(Answer::Granted(grant)) => {
                self.end_outage(waiter);
                // If this answer confirms a direct grant, use the receipt of the direct grant.
                let confirmed = self.unconfirmed.take();
                let grant = confirmed
                    .filter(|it| it.tokens == grant.tokens)
                    .unwrap_or(grant);
                Ok(Next::Take(self.granted(grant, sent)))
            }
            Ok(Answer::Unacknowledged(grant, insufficient)) => {
                self.weigh_grant(waiter, grant, insufficient, sent)
            }
            Ok(Answer::Busy(left)) => {
                self.end_outage(waiter);
                self.busy(waiter, left)
            }
            Ok(Answer::BusyWithoutExpiry(left)) => {
                self.end_outage(waiter);
                self.tell_endless();
                self.busy(waiter, left)
            }
            Ok(Answer::Retry {
                cause,
                after,
                new_owner,
            }) => {
                if new_owner {
                    self.change_owner();
                }
                self.retry(waiter, cause, after, sent)
            }
            Err(failure) => self.failed(waiter, failure, sent),
        }
    }

    /// Decides the next action after an answer that another owner holds the lock. `left` is the
    /// rest of the holder's lease, if known. Gives up at the deadline, and with `asks_once`. Starts
    /// a watch if there is none and the store can notify. Otherwise sleeps until the lock may be
    /// free or the next attempt is due.
    pub(super) fn busy(
        &mut self,
        waiter: &WaiterGuard<'_>,
        left: Option<Duration>,
    ) -> Result<Next, Error> {
        let now = self.engine.clock.now();
        waiter.found_busy(now);
        self.tell_contended();
        self.refuse_too_many()?;
        let now = self.engine.clock.now();
        if self.plan.is_late(now) || self.asks_once {
            return Ok(Next::GiveUp);
        }
        if let Waking::Polls { interval, jitter } = self.engine.abilities.waking {
            let pause = interval.max(SHORTEST_SLEEP) + jitter.mul_f64(fastrand::f64());
            let shown = self.shown_every();
            return Ok(Next::Sleep(
                now + shown.map_or(pause, |shown| pause.min(shown)),
            ));
        }
        if !waiter.is_watched() {
            return self.watch(waiter);
        }
        // A message may be lost, so the rest of the holder's lease and the length of the configured
        // lease bound the sleep. A waiter in the store's queue must also show its presence in time.
        let lease = self.engine.settings.lease_time.duration();
        let bounds = [left, self.shown_every()];
        self.attempts += 1;
        let bound = bounds.into_iter().flatten().fold(lease, Duration::min);
        Ok(Next::Sleep(now + bound.max(SHORTEST_SLEEP)))
    }

    /// Checks once, for a request of two or more permits, that the semaphore has that many:
    /// otherwise the wait would never end.
    fn refuse_too_many(&mut self) -> Result<(), Error> {
        let Some((asked, count @ 2..)) = self.lock.name.permits() else {
            return Ok(());
        };
        if std::mem::replace(&mut self.knows_limit, true) {
            return Ok(());
        }
        let (name, by) = (&self.lock.name, self.engine.command_deadline());
        // An error of this request also occurs in the next attempt, which handles it.
        let info = call_backend(|| self.engine.store()?.inspect(name, by)).ok();
        let Some(permits) = info.and_then(|info| info.permits) else {
            return Ok(());
        };
        if permits.limit != asked {
            self.engine.tell_other_limit(name, asked, permits.limit);
        }
        if count > permits.limit {
            return Err(Error::misuse(format!(
                "{count} permits are asked for, and the semaphore has {}: ask for fewer, or change \
                 its limit with `set_limit`",
                permits.limit
            )));
        }
        Ok(())
    }

    /// Starts a watch, so that the store notifies this client of the name's releases.
    fn watch(&mut self, waiter: &WaiterGuard<'_>) -> Result<Next, Error> {
        match self.begin_watch(waiter, self.engine.command_deadline()) {
            Ok(()) => {
                self.unwatched.reset();
                // The lock may have been released before the watch began, so attempt again before
                // sleeping.
                Ok(Next::Again)
            }
            // The store answers, but cannot notify of releases at the moment, so poll it.
            Err(failure) if failure.error().is_unavailable() => {
                Ok(Next::Sleep(self.engine.clock.now() + self.unwatched.next()))
            }
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Starts a watch that lasts as long as threads of this client queue for the lock. The store
    /// notifies this client of releases after this call.
    fn begin_watch(&self, waiter: &WaiterGuard<'_>, by: Moment) -> Result<(), Failure> {
        let (wake, by) = (Arc::new(waiter.wake()), self.plan.at_most(by));
        // An attempt follows the watch, and the waiters behind this one wait for the attempt's
        // answer.
        waiter.asks(by + self.answer_time(), self.owner);
        let watch = call_backend(|| self.engine.store()?.watch(&self.lock.name, wake, by))?;
        waiter.keep_watch(watch);
        Ok(())
    }

    /// Ends the outage after an answer of the store.
    pub(super) fn end_outage(&mut self, waiter: &WaiterGuard<'_>) {
        if self.outage.since.take().is_some() {
            waiter.set_outage(None);
            self.outage.backoff.reset();
        }
        if let Some(progress) = self.progress {
            progress.tell(None);
        }
    }

    /// Records that no thread of this client can acquire the lock at present.
    pub(super) fn has_outage(&self, waiter: &WaiterGuard<'_>, outage: StoreOutage) {
        if let Some(progress) = self.progress {
            progress.tell(Some(&outage.error));
        }
        waiter.set_outage(Some(outage));
    }

    /// Decides the next action after a request that was not sent, was refused, or got no answer.
    /// Returns the error if the wait must end.
    pub(super) fn failed(
        &mut self,
        waiter: &WaiterGuard<'_>,
        failure: Failure,
        sent: Moment,
    ) -> Result<Next, Error> {
        self.unknown_outcome |= matches!(failure, Failure::Unknown(_));
        let is_final = matches!(failure, Failure::Final(_));
        let error = failure.into_error();
        let since = *self.outage.since.get_or_insert(sent);
        if error.is_unavailable() {
            let error = error.clone().on(&self.lock.name);
            self.has_outage(
                waiter,
                StoreOutage {
                    since,
                    error,
                    ends: None,
                },
            );
        }
        if is_final {
            return Err(error.of_last_request());
        }
        if !error.is_unavailable() {
            return Err(error);
        }
        let now = self.engine.clock.now();
        let is_first = self.outage.backoff.failures() == 0;
        let pause = self.outage.backoff.next();
        if is_first && now.since(sent) < FIRST_PAUSE {
            // The connection was probably broken, so repeat at once, even if the caller does not
            // wait.
            return Ok(Next::Again);
        }
        let limit = self.limit(since);
        if now >= limit {
            return Err(error);
        }
        Ok(Next::Sleep((now + pause).min(limit)))
    }

    /// Sleeps until `until` or the deadline, and ignores notified releases. An interrupt ends the
    /// sleep.
    fn pause(&self, until: Moment) -> Result<(), Error> {
        let until = self.plan.at_most(until);
        while self.engine.clock.wait(self.signal, until) == Woken::Signalled {
            self.check_interrupt()?;
        }
        Ok(())
    }
}
