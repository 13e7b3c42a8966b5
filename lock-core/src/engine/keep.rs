//! Keeping what is held: when to renew, what a renewal came to, and when a holding is lost.

use super::Engine;
use super::entry::{Entry, EntryState};
use super::tenure::{GuardState, Tenure, Watched};
use crate::backend::Renewal;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
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
        let tenure = state.current().filter(|tenure| !tenure.has_ended()).map(Arc::clone)?;
        let finding = Self::examine(&tenure, now);
        let next = match &finding {
            Finding::Fine(next) | Finding::Renew(_, next) | Finding::UsedUp(next) => *next,
            Finding::Over(cause) => {
                let cause = *cause;
                drop(state);
                self.declare_lost(&entry, &tenure, cause);
                return None;
            }
            Finding::Released => return None,
        };
        // The timer's thread is running: it is the one that called us.
        let _armed = self.timer.arm(&entry, &mut state, now, next);
        drop(state);
        match finding {
            Finding::Renew(lease, _) => Some(RenewJob { entry, tenure, lease, reply: None }),
            Finding::UsedUp(end) => {
                let left = end.since(self.clock.now());
                self.events.emit(|| Event::RenewalsUsedUp { lock: tenure.name.clone(), left });
                None
            }
            Finding::Fine(_) | Finding::Over(_) | Finding::Released => None,
        }
    }

    fn examine(tenure: &Tenure, now: Moment) -> Finding {
        let mut inner = tenure.lock();
        let end = tenure.valid_until();
        if tenure.has_ended() && !mutant("released_name_is_kept") {
            return Finding::Released;
        }
        if now >= end {
            return Finding::Over(LossCause::Expired);
        }
        // A lease that ends by itself lasts until then: the caller has said for how long.
        let is_kept = inner.watch.is_some() && !mutant("ended_thread_keeps_it");
        if is_kept && tenure.holder.has_ended() {
            return Finding::Over(LossCause::HolderEnded);
        }
        match inner.watch {
            // A tick early is not too early: a renewal is sent a little after the look that found it due, so the next look,
            // which was armed by that one, comes as much before the time.
            Some(watch) if now + TICK <= watch.renew_at => Finding::Fine(watch.renew_at.min(end)),
            Some(Watched { left: Some(0), .. }) => {
                tenure.give_up_renewing(&mut inner);
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
        for (RenewJob { entry, tenure, .. }, error) in self.lanes.renew(&self.this, due) {
            self.renewal_failed(&entry, &tenure, sent, error);
        }
    }

    /// A renewal that was sent at `sent` came back.
    pub(crate) fn renewed(&self, job: &RenewJob, sent: Moment, answer: RenewalAnswer) {
        let RenewJob { entry, tenure, lease, reply } = job;
        let answer = match answer {
            Ok(renewal) => self.weigh_renewal(tenure, renewal),
            Err(error) => Err(error),
        };
        let result = match answer {
            Ok(Renewal::Extended | Renewal::Unacknowledged(_) | Renewal::Unreplicated(_)) => {
                self.renewal_succeeded(entry, tenure, sent, *lease, reply.is_none())
            }
            Ok(Renewal::Gone) => {
                tenure.lock().renewing = false;
                self.declare_lost(entry, tenure, LossCause::Gone);
                Err(tenure.lost_error())
            }
            Err(error) if error.is_foreign_format() => {
                // Something else lives under the key: that is an answer, and it says that ours is gone.
                self.overwritten(entry, tenure, error)
            }
            Err(error) => {
                let error = error.on(&tenure.name);
                if reply.is_none() {
                    self.renewal_failed(entry, tenure, sent, error.clone());
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
        tenure: &Arc<Tenure>,
        error: Error,
    ) -> Result<(), Error> {
        let mut inner = tenure.lock();
        inner.renewing = false;
        inner.last_failure = Some(error);
        drop(inner);
        self.declare_lost(entry, tenure, LossCause::Gone);
        Err(tenure.lost_error())
    }

    fn renewal_succeeded(
        &self,
        entry: &Arc<Entry>,
        tenure: &Arc<Tenure>,
        sent: Moment,
        lease: LeaseTime,
        by_watchdog: bool,
    ) -> Result<(), Error> {
        let mut state = entry.lock();
        let mut inner = tenure.lock();
        if by_watchdog {
            inner.renewing = false;
        }
        if tenure.has_ended() {
            // Released or lost while the renewal was under way. What it extended, the release or the clean-up ends.
            drop(inner);
            return Err(tenure.lost_error());
        }
        let (now, end) = (self.clock.now(), tenure.valid_until());
        let left = end.since(sent);
        if now >= end || !tenure.extended(&mut inner, sent, lease) {
            // Lost is final: a look since then saw it invalid, and a successor's work may have begun. But the store keeps it
            // for a lease from now on, so it is to be given back.
            inner.overlong = true;
            drop((inner, state));
            self.declare_lost(entry, tenure, LossCause::Expired);
            return Err(tenure.lost_error());
        }
        inner.last_failure = None;
        // Confirmed to the longest that was ever asked for: nothing longer can be in the store.
        inner.overlong &= lease < inner.lease;
        let mut suspended = false;
        if let Some(watch) = &mut inner.watch {
            if by_watchdog {
                watch.left = watch.left.map(|left| left.saturating_sub(1));
                watch.renew_at = Watched::next(sent, watch.ttl);
            }
        } else {
            suspended = tenure.recorded_state() == GuardState::Suspended; // no more renewals are allowed
        }
        tenure.set_suspended(&mut inner, suspended);
        let next = inner
            .watch
            .map_or(tenure.valid_until(), |watch| watch.renew_at.min(tenure.valid_until()));
        drop(inner);
        let _armed = self.timer.arm(entry, &mut state, now, next);
        drop(state);
        self.events.emit(|| Event::Renewed { lock: tenure.name.clone(), left });
        Ok(())
    }

    fn renewal_failed(&self, entry: &Arc<Entry>, tenure: &Arc<Tenure>, sent: Moment, error: Error) {
        let mut state = entry.lock();
        let mut inner = tenure.lock();
        inner.renewing = mutant("failed_renewal_is_not_repeated");
        if tenure.has_ended() {
            return;
        }
        let now = self.clock.now();
        let is_news = inner
            .last_failure
            .as_ref()
            .is_none_or(|last| (last.kind(), last.message()) != (error.kind(), error.message()));
        inner.last_failure = Some(error.clone());
        tenure.set_suspended(&mut inner, true);
        let mut next = tenure.valid_until();
        if let Some(watch) = &mut inner.watch {
            let pause = (watch.ttl.duration() / 30).clamp(SHORTEST_RETRY, LONGEST_RETRY);
            // Half of it at random, so that the locks of a node that was away do not all come back at once.
            watch.renew_at = now.max(sent) + pause / 2 + pause.mul_f64(fastrand::f64() / 2.0);
            next = next.min(watch.renew_at);
        }
        drop(inner);
        let _armed = self.timer.arm(entry, &mut state, now, next);
        drop(state);
        let left = tenure.remaining_at(now);
        if !is_news {
            return;
        }
        self.events.emit(|| Event::RenewalFailed { lock: tenure.name.clone(), error, left });
    }

    /// Ends a holding by loss: tells the holder, and lets others of this client contend.
    pub(crate) fn declare_lost(&self, entry: &Arc<Entry>, tenure: &Arc<Tenure>, cause: LossCause) {
        if self.is_forked() {
            return; // It is the parent's to lose.
        }
        let mut state = entry.lock();
        let mut inner = tenure.lock();
        if tenure.has_ended() && !mutant("loss_declared_twice") {
            return;
        }
        let fell_short = inner.last_failure.as_ref().is_some_and(Error::is_shortfall);
        let cause = match cause {
            LossCause::Expired if fell_short => LossCause::Shortfall,
            cause => cause,
        };
        let loss = tenure.set_lost(&mut inner, cause);
        let lease = inner.lease;
        // A lease that simply ran out needs nothing. After a renewal that failed, or has not come back yet, the store may
        // keep it for longer than we trust it, and of a holder that ended it has it still.
        let may_be_there = inner.last_failure.is_some() || inner.renewing || inner.overlong;
        let is_left_over =
            cause != LossCause::Gone && (may_be_there || cause == LossCause::HolderEnded);
        drop(inner);
        state.set_aside(tenure);
        self.look_at_lost(entry, &mut state, self.clock.now());
        drop(state);
        if tenure.holder.has_ended() {
            self.forget_detached(slice::from_ref(tenure));
        }
        // Also if it is gone by the store's word: a copy of the first request may be under way, and find it free.
        if is_left_over || tenure.is_doubtful() {
            self.clean_up(tenure.id(lease), tenure.closing());
        }
        tell_lost(&self.events, tenure, loss);
    }

    /// Sees to it that lost holdings are looked at again while there are any: a thread may end.
    fn look_at_lost(&self, entry: &Arc<Entry>, state: &mut EntryState, now: Moment) {
        if let Some(lease) = state.shortest_lost() {
            let _armed = self.timer.arm(entry, state, now, now + lease.duration() / 3);
        }
    }

    /// Whether it is valid now, by a look at the clock alone. Never in a forked child: the parent holds it.
    pub(crate) fn is_valid(&self, tenure: &Tenure) -> bool {
        tenure.is_valid_at(self.clock.now()) && !self.is_forked()
    }

    /// What is left of the validity, by a look at the clock alone.
    pub(crate) fn remaining(&self, tenure: &Tenure) -> Duration {
        if self.is_forked() { Duration::ZERO } else { tenure.remaining_at(self.clock.now()) }
    }

    /// Whether it is valid now. If its deadline has passed, it is lost from here on, also if the timer did not come by yet.
    pub(crate) fn still_holds(&self, entry: &Arc<Entry>, tenure: &Arc<Tenure>) -> bool {
        if tenure.is_valid_at(self.clock.now()) {
            return true;
        }
        self.declare_lost(entry, tenure, LossCause::Expired);
        false
    }

    /// The same, as an error where it is not.
    pub(crate) fn must_hold(&self, entry: &Arc<Entry>, tenure: &Arc<Tenure>) -> Result<(), Error> {
        self.refuse_if_forked().map_err(|error| error.on(&tenure.name))?;
        if self.still_holds(entry, tenure) { Ok(()) } else { Err(tenure.lost_error()) }
    }

    /// Makes the lease last for at least `lease` from now, and returns when that is confirmed.
    pub(crate) fn extend(
        &self,
        entry: &Arc<Entry>,
        tenure: &Arc<Tenure>,
        lease: LeaseTime,
    ) -> Result<(), Error> {
        self.must_hold(entry, tenure)?;
        if !self.abilities.owned {
            return Err(self.unowned("extended").on(&tenure.name));
        }
        {
            // From here on the store may keep it for that long, whatever we hear.
            let mut inner = tenure.lock();
            inner.lease = inner.lease.max(lease);
            inner.overlong = true;
        }
        let reply = Arc::new(Reply::default());
        let job = RenewJob {
            entry: Arc::clone(entry),
            tenure: Arc::clone(tenure),
            lease,
            reply: Some(Arc::clone(&reply)),
        };
        if let Some((_, error)) = self.lanes.renew(&self.this, &mut vec![job]).pop() {
            return Err(error.on(&tenure.name));
        }
        // Another batch may be under way before ours.
        let time = self.settings.command_timeout + tenure.replication.patience();
        let by = self.clock.now() + time * 2;
        loop {
            if let Some(result) = reply.result.lock().take() {
                return result;
            }
            if self.clock.now() >= by {
                return Err(
                    Error::unavailable("the extension was not confirmed in time").on(&tenure.name)
                );
            }
            self.clock.wait(&reply.signal, by);
        }
    }

    fn unowned(&self, what: &str) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "this wire format does not say who holds a lock, so a holding cannot be {what}"
            ),
        )
    }

    /// Asks the store whether the holding is still there, and what is left of its lease: what the
    /// store says, less the time since it was asked.
    pub(crate) fn verify(
        &self,
        entry: &Arc<Entry>,
        tenure: &Arc<Tenure>,
    ) -> Result<Duration, Error> {
        self.must_hold(entry, tenure)?;
        if !self.abilities.owned {
            return Err(self.unowned("verified").on(&tenure.name));
        }
        let sent = self.clock.now();
        let by = sent + self.settings.command_timeout;
        let info = match self.ask(|backend| backend.inspect(&tenure.name, by)) {
            Ok(info) => info,
            Err(failure) if failure.error().is_foreign_format() => {
                return self
                    .overwritten(entry, tenure, failure.into_error())
                    .map(|()| Duration::ZERO);
            }
            Err(failure) => return Err(failure.into_error().on(&tenure.name)),
        };
        match info.holder {
            Some(holder) if tenure.owner.is(&holder.owner) => {
                // What was true when the store answered may have ended before the answer came.
                self.must_hold(entry, tenure)?;
                let took = self.clock.now().since(sent);
                Ok(holder.remaining.map_or(Duration::MAX, |left| left.saturating_sub(took)))
            }
            _ => {
                self.declare_lost(entry, tenure, LossCause::Gone);
                Err(tenure.lost_error())
            }
        }
    }
}

/// Tells of a loss. If the store says that the lock is gone, it may have been gone for all that were handed it on the same
/// grant, and were told `Ok` when they gave it on.
pub(super) fn tell_lost(events: &Events, tenure: &Tenure, loss: Loss) {
    let relay = tenure.relay();
    if loss.cause() == LossCause::Gone && relay.before > 0 {
        events.emit(|| Event::HandedOnLost {
            lock: tenure.name.clone(),
            holds: relay.before,
            first: relay.first,
            last: tenure.token.map(|token| FencingToken::new(token.get() - 1)),
        });
    }
    events.emit(|| Event::Lost { lock: tenure.name.clone(), token: tenure.token, loss });
}
