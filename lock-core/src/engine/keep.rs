//! Keeping what is held: when to renew, what a renewal came to, and when a holding is lost.

use super::Engine;
use super::acquisition::{Acquisition, GuardState, Watched};
use super::entry::{Entry, EntryState};
use crate::backend::Renewal;
use crate::clock::Moment;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::lease::LeaseTime;
use crate::loss::{Loss, LossCause};
use crate::sync::mutant;
use crate::token::FencingToken;
use crate::watchdog::TICK;
use crate::watchdog::lane::{RenewJob, RenewalAnswer, Reply};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

/// How soon a failed renewal is tried again: a thirtieth of the lease, within these limits.
const SHORTEST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// What the timer finds when it looks at a holding.
enum Finding {
    Fine(Moment),
    Renew(LeaseTime, Moment),
    UsedUp(Moment),
    Over(LossCause),
    /// Its release has begun.
    Released,
}

impl Engine {
    /// The timer of this name has fired: see to whatever is due there, and arm it again if anything is held. Returns the
    /// renewal that is due, to be [sent](Self::send_renewals) with others.
    ///
    /// `now` was read shortly before. What is over since is found at the next look, or when the answer to the renewal comes.
    pub(crate) fn look_after(&self, entry: Arc<Entry>, now: Moment) -> Option<RenewJob> {
        let mut state = entry.lock();
        state.timer = None;
        let left_behind = state.take_left_behind();
        if !left_behind.is_empty() {
            drop(state);
            self.forget_detached(&left_behind);
            state = entry.lock();
        }
        self.look_at_lost(&entry, &mut state, now);
        let acquisition =
            state.current().filter(|acquisition| !acquisition.has_ended()).map(Arc::clone)?;
        let finding = Self::examine(&acquisition, now);
        let next = match &finding {
            Finding::Fine(next) | Finding::Renew(_, next) | Finding::UsedUp(next) => *next,
            Finding::Over(cause) => {
                let cause = *cause;
                drop(state);
                self.declare_lost(&entry, &acquisition, cause);
                return None;
            }
            Finding::Released => return None,
        };
        // The timer's thread is running: it is the one that called us.
        let _armed = self.timer.arm(&entry, &mut state, now, next);
        drop(state);
        match finding {
            Finding::Renew(lease, _) => Some(RenewJob { entry, acquisition, lease, reply: None }),
            Finding::UsedUp(end) => {
                let left = end.since(self.clock.now());
                self.events.emit(|| Event::RenewalsUsedUp { lock: acquisition.name.clone(), left });
                None
            }
            Finding::Fine(_) | Finding::Over(_) | Finding::Released => None,
        }
    }

    fn examine(acquisition: &Acquisition, now: Moment) -> Finding {
        let mut inner = acquisition.lock();
        let end = acquisition.valid_until();
        if acquisition.has_ended() && !mutant("released_name_is_kept") {
            return Finding::Released;
        }
        if now >= end {
            return Finding::Over(LossCause::Expired);
        }
        // A lease that ends by itself lasts until then: the caller has said for how long.
        let is_kept = inner.watch.is_some() && !mutant("ended_thread_keeps_it");
        if is_kept && acquisition.holder.has_ended() {
            return Finding::Over(LossCause::HolderEnded);
        }
        match inner.watch {
            // A tick early is not too early: a renewal is sent a little after the look that found it due, so the next look,
            // which was armed by that one, comes as much before the time.
            Some(watch) if now + TICK <= watch.renew_at => Finding::Fine(watch.renew_at.min(end)),
            Some(Watched { left: Some(0), .. }) => {
                acquisition.give_up_renewing(&mut inner);
                Finding::UsedUp(end)
            }
            Some(watch) if !inner.renewing => {
                inner.renewing = true;
                // Armed for the renewal after this one: if this one comes back in time, nothing has to be armed again.
                Finding::Renew(watch.ttl, Watched::next(now, watch.ttl).min(end))
            }
            _ => Finding::Fine(end),
        }
    }

    /// Hands the lanes the renewals that are due, and leaves `due` empty.
    pub(crate) fn send_renewals(&self, due: &mut Vec<RenewJob>) {
        let sent = self.clock.now();
        for (RenewJob { entry, acquisition, .. }, error) in self.lanes.renew(&self.this, due) {
            self.renewal_failed(&entry, &acquisition, sent, error);
        }
    }

    /// A renewal that was sent at `sent` came back.
    pub(crate) fn renewed(&self, job: &RenewJob, sent: Moment, answer: RenewalAnswer) {
        let RenewJob { entry, acquisition, lease, reply } = job;
        let answer = match answer {
            Ok(renewal) => self.weigh_renewal(acquisition, renewal),
            Err(error) => Err(error),
        };
        let result = match answer {
            Ok(Renewal::Extended | Renewal::Unacknowledged(_) | Renewal::Unreplicated(_)) => {
                self.renewal_succeeded(entry, acquisition, sent, *lease, reply.is_none())
            }
            Ok(Renewal::Gone) => {
                acquisition.lock().renewing = false;
                self.declare_lost(entry, acquisition, LossCause::Gone);
                Err(acquisition.lost_error())
            }
            Err(error) if error.is_foreign_format() => {
                // Something else lives under the key: that is an answer, and it says that ours is gone.
                self.overwritten(entry, acquisition, error)
            }
            Err(error) => {
                let error = error.on(&acquisition.name);
                if reply.is_none() {
                    self.renewal_failed(entry, acquisition, sent, error.clone());
                }
                Err(error)
            }
        };
        if let Some(reply) = reply {
            reply.answer(result);
        }
    }

    /// The store found something that is not a lock under the name.
    pub(crate) fn overwritten(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
        error: Error,
    ) -> Result<(), Error> {
        let mut inner = acquisition.lock();
        inner.renewing = false;
        inner.last_failure = Some(error);
        drop(inner);
        self.declare_lost(entry, acquisition, LossCause::Gone);
        Err(acquisition.lost_error())
    }

    fn renewal_succeeded(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
        sent: Moment,
        lease: LeaseTime,
        by_watchdog: bool,
    ) -> Result<(), Error> {
        let mut state = entry.lock();
        let mut inner = acquisition.lock();
        if by_watchdog {
            inner.renewing = false;
        }
        if acquisition.has_ended() {
            // Released or lost while the renewal was under way. What it extended, the release or the clean-up ends.
            drop(inner);
            return Err(acquisition.lost_error());
        }
        let (now, end) = (self.clock.now(), acquisition.valid_until());
        let left = end.since(sent);
        if now >= end || !acquisition.extended(&mut inner, sent, lease) {
            // Lost is final: a look since then saw it invalid, and a successor's work may have begun. But the store keeps it
            // for a lease from now on, so it is to be given back.
            inner.overlong = true;
            drop((inner, state));
            self.declare_lost(entry, acquisition, LossCause::Expired);
            return Err(acquisition.lost_error());
        }
        inner.renewal_succeeded();
        // Confirmed to the longest that was ever asked for: nothing longer can be in the store.
        inner.overlong &= lease < inner.lease;
        let mut suspended = false;
        if let Some(watch) = &mut inner.watch {
            if by_watchdog {
                watch.left = watch.left.map(|left| left.saturating_sub(1));
                watch.renew_at = Watched::next(sent, watch.ttl);
            }
        } else {
            suspended = acquisition.recorded_state() == GuardState::Suspended; // no more renewals are allowed
        }
        acquisition.set_suspended(&mut inner, suspended);
        let next = inner.watch.map_or(acquisition.valid_until(), |watch| {
            watch.renew_at.min(acquisition.valid_until())
        });
        drop(inner);
        let _armed = self.timer.arm(entry, &mut state, now, next);
        drop(state);
        self.events.emit(|| Event::Renewed { lock: acquisition.name.clone(), left });
        Ok(())
    }

    fn renewal_failed(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
        sent: Moment,
        error: Error,
    ) {
        let mut state = entry.lock();
        let mut inner = acquisition.lock();
        inner.renewing = mutant("failed_renewal_is_not_repeated");
        if acquisition.has_ended() {
            return;
        }
        let now = self.clock.now();
        let is_news = inner.renewal_failed(&error);
        acquisition.set_suspended(&mut inner, true);
        let mut next = acquisition.valid_until();
        if let Some(watch) = &mut inner.watch {
            let pause = (watch.ttl.duration() / 30).clamp(SHORTEST_RETRY, LONGEST_RETRY);
            // Half of it at random, so that the locks of a node that was away do not all come back at once.
            watch.renew_at = now.max(sent) + pause / 2 + pause.mul_f64(fastrand::f64() / 2.0);
            next = next.min(watch.renew_at);
        }
        drop(inner);
        let _armed = self.timer.arm(entry, &mut state, now, next);
        drop(state);
        let left = acquisition.remaining_at(now);
        if !is_news {
            return;
        }
        self.events.emit(|| Event::RenewalFailed { lock: acquisition.name.clone(), error, left });
    }

    /// Ends a holding by loss: tells the holder, and lets others of this client contend.
    pub(crate) fn declare_lost(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
        cause: LossCause,
    ) {
        if self.is_forked() {
            return; // It is the parent's to lose.
        }
        let mut state = entry.lock();
        let mut inner = acquisition.lock();
        if acquisition.has_ended() && !mutant("loss_declared_twice") {
            return;
        }
        let fell_short = inner.last_failure.as_ref().is_some_and(Error::is_insufficient_replicas);
        let cause = match cause {
            LossCause::Expired if fell_short => LossCause::InsufficientReplicas,
            cause => cause,
        };
        let loss = acquisition.set_lost(&mut inner, cause);
        let lease = inner.lease;
        // A lease that simply ran out needs nothing. After a renewal that failed, or has not come back yet, the store may
        // keep it for longer than we trust it, and of a holder that ended it has it still.
        let may_be_there = inner.last_failure.is_some() || inner.renewing || inner.overlong;
        let is_left_over =
            cause != LossCause::Gone && (may_be_there || cause == LossCause::HolderEnded);
        drop(inner);
        state.set_aside(acquisition);
        self.look_at_lost(entry, &mut state, self.clock.now());
        drop(state);
        if acquisition.holder.has_ended() {
            self.forget_detached(slice::from_ref(acquisition));
        }
        // Also if it is gone by the store's word: a copy of the first request may be under way, and find it free.
        if is_left_over || acquisition.is_doubtful() {
            self.clean_up(acquisition.id(lease), acquisition.closing());
        }
        tell_lost(&self.events, acquisition, loss);
    }

    /// Sees to it that lost holdings are looked at again while there are any: a thread may end.
    fn look_at_lost(&self, entry: &Arc<Entry>, state: &mut EntryState, now: Moment) {
        if let Some(lease) = state.shortest_lost() {
            let _armed = self.timer.arm(entry, state, now, now + lease.duration() / 3);
        }
    }

    /// Whether it is valid now, by a look at the clock alone. Never in a forked child: the parent holds it.
    pub(crate) fn is_valid(&self, acquisition: &Acquisition) -> bool {
        acquisition.is_valid_at(self.clock.now()) && !self.is_forked()
    }

    /// What is left of the validity, by a look at the clock alone.
    pub(crate) fn remaining(&self, acquisition: &Acquisition) -> Duration {
        if self.is_forked() { Duration::ZERO } else { acquisition.remaining_at(self.clock.now()) }
    }

    /// Whether it is valid now. If its deadline has passed, it is lost from here on, also if the timer did not come by yet.
    pub(crate) fn still_holds(&self, entry: &Arc<Entry>, acquisition: &Arc<Acquisition>) -> bool {
        if acquisition.is_valid_at(self.clock.now()) {
            return true;
        }
        self.declare_lost(entry, acquisition, LossCause::Expired);
        false
    }

    /// The same, as an error where it is not.
    pub(crate) fn must_hold(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<(), Error> {
        self.refuse_if_forked().map_err(|error| error.on(&acquisition.name))?;
        if self.still_holds(entry, acquisition) { Ok(()) } else { Err(acquisition.lost_error()) }
    }

    /// Makes the lease last for at least `lease` from now, and returns when that is confirmed.
    pub(crate) fn extend(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
        lease: LeaseTime,
    ) -> Result<(), Error> {
        self.must_hold(entry, acquisition)?;
        {
            // From here on the store may keep it for that long, whatever we hear.
            let mut inner = acquisition.lock();
            inner.lease = inner.lease.max(lease);
            inner.overlong = true;
        }
        let reply = Arc::new(Reply::default());
        let job = RenewJob {
            entry: Arc::clone(entry),
            acquisition: Arc::clone(acquisition),
            lease,
            reply: Some(Arc::clone(&reply)),
        };
        if let Some((_, error)) = self.lanes.renew(&self.this, &mut vec![job]).pop() {
            return Err(error.on(&acquisition.name));
        }
        // Another batch may be under way before ours.
        let time = self.settings.command_timeout + acquisition.replication.patience();
        let by = self.clock.now() + time * 2;
        loop {
            if let Some(result) = reply.result.lock().take() {
                return result;
            }
            if self.clock.now() >= by {
                return Err(Error::unavailable("the extension was not confirmed in time")
                    .on(&acquisition.name));
            }
            self.clock.wait(&reply.signal, by);
        }
    }

    /// Asks the store whether the holding is still there, and what is left of its lease: what the
    /// store says, less the time since it was asked.
    pub(crate) fn verify(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<Duration, Error> {
        self.must_hold(entry, acquisition)?;
        let sent = self.clock.now();
        let by = sent + self.settings.command_timeout;
        let id = acquisition.id(acquisition.lock().lease);
        let holder = match self.ask(|backend| backend.verify(&id, by)) {
            Ok(holder) => holder,
            Err(failure) if failure.error().is_foreign_format() => {
                return self
                    .overwritten(entry, acquisition, failure.into_error())
                    .map(|()| Duration::ZERO);
            }
            Err(failure) => return Err(failure.into_error().on(&acquisition.name)),
        };
        match holder {
            Some(holder) => {
                // What was true when the store answered may have ended before the answer came.
                self.must_hold(entry, acquisition)?;
                let took = self.clock.now().since(sent);
                Ok(holder.remaining.map_or(Duration::MAX, |left| left.saturating_sub(took)))
            }
            None => {
                self.declare_lost(entry, acquisition, LossCause::Gone);
                Err(acquisition.lost_error())
            }
        }
    }
}

/// Tells of a loss. If the store says that the lock is gone, it may have been gone for all that were handed it on the same
/// grant, and were told `Ok` when they gave it on.
pub(super) fn tell_lost(events: &Events, acquisition: &Acquisition, loss: Loss) {
    let relay = acquisition.relay();
    if loss.cause() == LossCause::Gone && relay.before > 0 {
        events.emit(|| Event::HandedOnLost {
            lock: acquisition.name.clone(),
            holds: relay.before,
            first: relay.first,
            last: acquisition.token.map(|token| FencingToken::new(token.get() - 1)),
        });
    }
    events.emit(|| Event::Lost { lock: acquisition.name.clone(), token: acquisition.token, loss });
}
