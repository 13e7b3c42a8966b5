//! Asking the store, again and again until it grants the lock or the time is over, and what to do after each answer.

use super::Wait;
use crate::backend::{Answer, Attempt, Failure, Grant, LockInfo, Tokens, Waking};
use crate::clock::{Moment, Woken};
use crate::engine::entry::{Entry, EntryWake, Place, StoreOutage};
use crate::engine::insufficient_replicas::Weighed;
use crate::error::Error;
use crate::sync::mutant;
use std::sync::Arc;
use std::time::Duration;

/// The first pause before an unreachable store is asked again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The shortest sleep on a busy lock: a lease that has less than a millisecond left is reported as zero.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// How many tokens are set aside for hand-offs, where others of this client wait: more than can take their turns in the
/// 5 ms for which a client keeps a lock by default. They are microseconds: if their holder dies, the counter is ahead of the
/// clock by two milliseconds.
const SET_ASIDE: u32 = 2_000;

/// What to do after an attempt.
pub(in crate::engine) enum Next {
    Again,
    Sleep(Moment),
    /// The same, and news of releases are no reason to get up.
    Pause(Moment),
    GiveUp,
}

/// What came of an attempt.
enum Outcome {
    Granted(Grant, Moment),
    Not(Next),
}

impl Wait<'_> {
    /// Asks the store until it grants the lock or the deadline has come. `None`: it was busy until then.
    pub(super) fn contend(
        &mut self,
        place: &Place<'_>,
        entry: &Arc<Entry>,
    ) -> Result<Option<(Grant, Moment)>, Error> {
        let engine = self.engine;
        let mut outage = Outage { since: place.outage_since(), attempts: 0 };
        if outage.since.is_some_and(|since| engine.clock.now() >= self.limit(since))
            && let Some(error) = place.why_not()
        {
            return Err(error); // the head before us has asked in vain for as long as we wait, too
        }
        loop {
            // What was raised before this request, this request will see for itself. The interrupt raises the signal, too:
            // it is looked at after the signal was taken down, or one that fires in between would sleep with us.
            let early = mutant("interrupt_checked_too_early").then(|| self.check_interrupt());
            self.signal.take();
            early.unwrap_or_else(|| self.check_interrupt())?;
            let left =
                if outage.since.is_none() { self.leave_to_others(place, entry)? } else { None };
            let next = match left {
                Some(next) => next,
                None => match self.attempt(place, entry, &mut outage)? {
                    Outcome::Granted(grant, sent) => return Ok(Some((grant, sent))),
                    Outcome::Not(next) => next,
                },
            };
            match next {
                Next::Again => {}
                Next::GiveUp => return Ok(None),
                Next::Pause(until) => self.pause(until)?,
                Next::Sleep(until) => {
                    // Also at the deadline: it may have been freed at this very moment, so it is looked at once more
                    // before it is said that it was busy.
                    let _lost = mutant("signal_taken_before_sleep") && self.signal.take();
                    if engine.clock.wait(self.signal, self.at_most(until)) == Woken::Signalled {
                        self.let_others_go_first(place);
                    }
                }
            }
        }
    }

    /// Asks the store for the lock, once.
    fn attempt(
        &mut self,
        place: &Place<'_>,
        entry: &Arc<Entry>,
        outage: &mut Outage,
    ) -> Result<Outcome, Error> {
        let sent = self.engine.clock.now();
        let by = sent + (self.engine.settings.command_timeout + self.plan.replication.patience());
        let has_followers = place.asks(by);
        if !self.doubt {
            let may_hand_on = self.plan.may_be_handed(self.engine.settings.hand_off);
            self.set_aside = if may_hand_on && has_followers { SET_ASIDE } else { 0 };
        }
        let next = match self.ask(entry, by) {
            Ok(Answer::Granted(grant)) => {
                if outage.since.is_some() {
                    place.set_outage(None);
                }
                return Ok(Outcome::Granted(grant, sent));
            }
            Ok(Answer::Unacknowledged(grant, insufficient)) => {
                match self.fell_short(place, grant, insufficient, sent, outage)? {
                    Weighed::Accepted(grant) => {
                        place.set_outage(None);
                        return Ok(Outcome::Granted(grant, sent));
                    }
                    Weighed::TakenBack(next) => next,
                }
            }
            Ok(answer @ (Answer::Busy(left) | Answer::BusyWithoutExpiry(left))) => {
                if outage.since.is_some() {
                    place.set_outage(None);
                    *outage = Outage::default();
                }
                if matches!(answer, Answer::BusyWithoutExpiry(_)) {
                    self.tell_endless(entry);
                }
                self.busy(place, entry, left)?
            }
            Ok(Answer::RolledBack(why)) => self.withdrawn(place, entry, why, sent, outage)?,
            Ok(Answer::Stale(_)) => {
                let why = "the store turned down a token that nobody had proposed";
                let failure = Failure::Refused(Error::unavailable(why));
                self.failed(place, failure, sent, outage)?
            }
            Err(failure) => self.failed(place, failure, sent, outage)?,
        };
        Ok(Outcome::Not(next))
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

    fn ask(&self, entry: &Arc<Entry>, by: Moment) -> Result<Answer, Failure> {
        let tokens = if self.engine.settings.tokens {
            Tokens::Assign { reserve: self.set_aside }
        } else {
            Tokens::None
        };
        let attempt = Attempt::new(&entry.name, self.owner, self.plan.time)
            .tokens(tokens)
            .replication(self.plan.replication);
        self.engine.ask(|backend| backend.acquire(&attempt, by))
    }

    /// Somebody else has it: see to it that we are woken, or sleep until it can have changed.
    pub(super) fn busy(
        &mut self,
        place: &Place<'_>,
        entry: &Arc<Entry>,
        left: Option<Duration>,
    ) -> Result<Next, Error> {
        self.tell_contended(entry);
        let now = self.engine.clock.now();
        place.found_busy(now);
        if self.plan.deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(Next::GiveUp);
        }
        if let Waking::Polls { interval, jitter } = self.engine.abilities.waking {
            return Ok(Next::Sleep(
                now + interval.max(SHORTEST_SLEEP) + jitter.mul_f64(fastrand::f64()),
            ));
        }
        if !place.is_watched() {
            return self.watch(place, entry);
        }
        // A message may be lost, so the holder's lease bounds the sleep, and never more than one of our own does.
        let lease = self.engine.settings.lease_time.duration();
        let bounds = [left, self.engine.abilities.max_poll_interval];
        let bound = bounds.into_iter().flatten().fold(lease, Duration::min);
        Ok(Next::Sleep(now + bound.max(SHORTEST_SLEEP)))
    }

    /// Sees to it that this name's releases are told.
    fn watch(&mut self, place: &Place<'_>, entry: &Arc<Entry>) -> Result<Next, Error> {
        let wake = Arc::new(EntryWake(Arc::downgrade(entry)));
        let by = self.at_most(self.engine.command_deadline());
        place.asks(by);
        match self.engine.ask(|backend| backend.watch(&entry.name, wake, by)) {
            Ok(watch) => {
                place.keep_watch(watch);
                self.unwatched = 0;
                // Between our look and the registration it may have been released: look again before sleeping.
                let sleeps = mutant("no_look_after_watch");
                let until = self.engine.clock.now() + LONGEST_PAUSE * 9;
                Ok(if sleeps { Next::Sleep(until) } else { Next::Again })
            }
            Err(failure) if failure.error().is_unavailable() => {
                // The store answers, and does not tell of releases at the moment: ask it again and again.
                self.unwatched += 1;
                Ok(Next::Sleep(self.engine.clock.now() + pause(self.unwatched)))
            }
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Leaves the lock to clients that have waited for longer: looks, instead of asking for it, while they have it or may
    /// be about to ask. `None`: they do not want it, or there are none.
    fn leave_to_others(
        &mut self,
        place: &Place<'_>,
        entry: &Arc<Entry>,
    ) -> Result<Option<Next>, Error> {
        let (is_behind, before) = place.is_behind();
        let now = self.engine.clock.now();
        // An attempt whose answer was lost may have the lock, and only another attempt finds that out.
        let cannot_wait = self.doubt || self.plan.deadline.is_some_and(|deadline| now >= deadline);
        // Where some do not publish, only an attempt learns whether to ask again soon.
        let abilities = &self.engine.abilities;
        let cannot_hear = self.unwatched > 0
            || abilities.waking != Waking::Publishes
            || abilities.max_poll_interval.is_some();
        if !is_behind || cannot_wait || cannot_hear {
            return Ok(None);
        }
        if !place.is_watched() {
            return self.watch(place, entry).map(Some);
        }
        let answered_by = self.engine.command_deadline();
        place.asks(answered_by);
        let by = self.at_most(answered_by);
        match self.engine.ask(|backend| backend.peek(&entry.name, by)) {
            Ok(LockInfo { holder: Some(holder) }) => {
                if holder.remaining.is_none() {
                    self.tell_endless(entry);
                }
                self.busy(place, entry, holder.remaining).map(Some)
            }
            // It was released meanwhile, and is the next client's.
            Ok(_) if place.is_behind().1 != before => {
                place.answered(self.engine.clock.now());
                self.let_others_go_first(place);
                Ok(Some(Next::Again))
            }
            // Whatever keeps the store from an answer, an attempt meets it, too.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// The store could not be asked, or refused: what to do about it, or the error to give up with.
    pub(super) fn failed(
        &mut self,
        place: &Place<'_>,
        failure: Failure,
        sent: Moment,
        outage: &mut Outage,
    ) -> Result<Next, Error> {
        self.doubt |= matches!(failure, Failure::Unknown(_));
        let is_final = matches!(failure, Failure::Final(_));
        let error = failure.into_error();
        let since = *outage.since.get_or_insert(sent);
        if error.is_unavailable() {
            let error = error.clone().on(&place.entry().name);
            place.set_outage(Some(StoreOutage { since, error, ends: None }));
        }
        if is_final || !error.is_unavailable() {
            return Err(error);
        }
        let now = self.engine.clock.now();
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
}

/// Since when the store cannot be asked, and how often it was tried.
#[derive(Default)]
pub(in crate::engine) struct Outage {
    pub(in crate::engine) since: Option<Moment>,
    pub(in crate::engine) attempts: u32,
}

/// How long to wait after this many failures in a row: doubling, and half of it at random, so that clients that lost the
/// same store do not all come back at once.
pub(in crate::engine) fn pause(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE * 2u32.saturating_pow(failures.min(10));
    doubled.min(LONGEST_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0)
}
