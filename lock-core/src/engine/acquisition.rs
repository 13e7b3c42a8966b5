//! [`Acquisition`]: one stretch of holding a lock, from the grant to the release or the loss.

use super::handoff_chain::HandoffChain;
use super::minimum_hold::MinimumHold;
use super::skipped_time::Reading;
use crate::backend::owner::{OwnerId, OwnerLabel};
use crate::backend::replication::Replication;
use crate::backend::token::{FencingToken, TokenRange};
use crate::backend::{AcquisitionId, Receipt, ReleaseOptions};
use crate::call::notification::{self, Wanted};
use crate::engine::holder::Holder;
use crate::error::Error;
use crate::name::LockName;
use crate::observe::loss::{Loss, LossCause};
use crate::observe::metrics::Counted;
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::time::Moment;
use crate::time::lease::LeaseTime;
use std::time::Duration;

/// The state of a held lock, as the client knows it without querying the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GuardState {
    /// The lock is held. The watchdog renews it, unless the lease is fixed.
    Held,
    /// The lock is still held, but its renewals fail or are used up. This is also the state after
    /// the time of day has jumped ahead, as after a pause of a virtual machine, until the store
    /// confirms the lock.
    Suspended,
    /// The lease has ended, or the store reports that this client no longer holds the lock. Final.
    Lost,
    /// The lock was released. Final.
    Released,
}

const STATES: [GuardState; 4] = [
    GuardState::Held,
    GuardState::Suspended,
    GuardState::Lost,
    GuardState::Released,
];

/// One stretch of holding a lock.
///
/// `state` and `valid_until` are read without the mutex of `inner`. They are written under that
/// mutex, except for [`OVER`], which a reader of `valid_until` sets once the deadline has passed.
pub(crate) struct Acquisition {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) holder: Holder,
    pub(crate) token: Option<FencingToken>,
    pub(crate) since: Moment,
    /// The replication policy for the renewals.
    pub(crate) replication: Replication,
    receipt: Receipt,
    pub(super) chain: HandoffChain,
    /// True if an attempt of this owner went unanswered: a copy of the attempt may still arrive at
    /// the store.
    unknown_outcome: bool,
    /// True if the options of the call set the lease. Otherwise the lease is at least that of the
    /// settings.
    pub(crate) is_lease_asked: bool,
    /// The hold count. It changes to and from 0 under the local lock's mutex. Between counts above
    /// 0, only the holding thread changes it, and needs no mutex for that.
    holds: AtomicU32,
    state: AtomicU8,
    /// The end of the validity in nanoseconds, with [`OVER`] set once a reader has found that it
    /// has passed.
    valid_until: AtomicU64,
    /// The total skipped time, in nanoseconds, when the last request that the store confirmed was
    /// sent.
    skipped: AtomicU64,
    inner: Mutex<Inner>,
}

/// The lowest bit of `valid_until`. Set when a reader has found the deadline passed; nothing
/// extends the validity afterwards.
const OVER: u64 = 1;

/// The largest hold count, as in Java's `ReentrantReadWriteLock`. A larger count is most likely an
/// endless recursion.
pub(crate) const MOST_HOLDS: u32 = 65_535;

/// The largest number of different causes of failed renewals that are reported until a renewal
/// succeeds.
const MOST_CAUSES: usize = 8;

/// The mutable state behind the acquisition's mutex.
pub(crate) struct Inner {
    /// The longest lease that was requested so far.
    pub(crate) lease: LeaseTime,
    /// The renewal plan; `None` for a fixed lease, once the allowed renewals are used up, and once
    /// the acquisition has ended.
    pub(crate) renewal: Option<RenewalPlan>,
    /// True while a renewal by the watchdog is queued or under way.
    pub(crate) renewing: bool,
    /// True if the store reported a change of the lock while a renewal was queued or under way:
    /// another renewal follows.
    pub(crate) changed: bool,
    /// True if the store may keep the lock beyond `valid_until`: an extension is unconfirmed, a
    /// renewal or an extension was confirmed too late, or the validity was shortened because of the
    /// replicas' clocks.
    pub(crate) overlong: bool,
    /// The time at which a renewal must carry the owner's label again; `None` means the next
    /// renewal.
    label_due: Option<Moment>,
    /// True after a renewal that counts although too few replicas confirmed it, until enough
    /// replicas confirm a later one. Under `OnInsufficientReplicas::Accept`, set only if the master
    /// has no replicas.
    pub(crate) degraded: bool,
    rare: Option<Box<RareData>>,
    /// The entry in the count of held locks, until the acquisition ends.
    counted: Counted,
}

/// State that most acquisitions never need. Boxed to save memory: a client may hold very many.
#[derive(Default)]
struct RareData {
    /// The error of the last renewal, if that failed, or another error to report with a loss.
    last_failure: Option<Error>,
    /// The causes reported since the last successful renewal, so that each of several alternating
    /// causes is reported only once.
    told_failures: Vec<Error>,
    minimum_hold: Option<MinimumHold>,
    loss: Option<Loss>,
    listeners: Vec<Listener>,
    /// The time by which a promoted replica may end the lease earlier, because its clock is ahead.
    /// The validity is shorter by this time.
    lead: Duration,
}

/// A callback for a loss, called at most once.
pub(crate) struct Listener {
    /// Called under the acquisition's mutex: it must neither block nor call into an acquisition.
    tell: Box<dyn FnOnce(Loss) + Send>,
    pub(crate) wanted: Wanted,
}

impl Listener {
    pub(crate) fn new(wanted: Wanted, tell: impl FnOnce(Loss) + Send + 'static) -> Self {
        Self {
            tell: Box::new(tell),
            wanted,
        }
    }

    pub(crate) fn tell(self, loss: Loss) {
        (self.tell)(loss);
    }
}

/// The time of the next renewal, its lease, and the number of renewals left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenewalPlan {
    pub(crate) ttl: LeaseTime,
    pub(crate) left: Option<u32>,
    pub(crate) due: Moment,
    /// The regular due time, if an early renewal was inserted before it. A renewal at this time
    /// follows the early one: otherwise locks that were acquired together would be renewed
    /// together.
    planned: Option<Moment>,
}

impl Inner {
    fn new(lease: LeaseTime, renewal: Option<RenewalPlan>, counted: Counted) -> Self {
        Self {
            lease,
            renewal,
            renewing: false,
            changed: false,
            overlong: false,
            label_due: None,
            degraded: false,
            rare: None,
            counted,
        }
    }

    /// Records a failed renewal. Returns whether the failure must be reported: until a renewal
    /// succeeds, each of at most [`MOST_CAUSES`] causes is reported once.
    pub(crate) fn note_failure(&mut self, error: &Error) -> bool {
        self.set_last_failure(error.clone());
        self.label_due = None;
        let told = &mut self.rare().told_failures;
        let is_same =
            |told: &Error| (told.kind(), told.message()) == (error.kind(), error.message());
        let is_news = told.len() < MOST_CAUSES && !told.iter().any(is_same);
        if is_news {
            told.push(error.clone());
        }
        is_news
    }

    /// Returns the error of the last renewal, if it failed.
    pub(crate) fn last_failure(&self) -> Option<&Error> {
        self.rare.as_ref()?.last_failure.as_ref()
    }

    /// Records the error to report as the cause if the lock is lost. Does not report it now.
    pub(crate) fn set_last_failure(&mut self, error: Error) {
        self.rare().last_failure = Some(error);
    }

    /// Clears the failures after a successful renewal, so that the next failure is reported again.
    pub(crate) fn renewal_succeeded(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.last_failure = None;
            rare.told_failures = Vec::new();
        }
    }

    fn lead(&self) -> Duration {
        self.rare.as_ref().map_or(Duration::ZERO, |rare| rare.lead)
    }

    fn set_lead(&mut self, lead: Duration) {
        if !lead.is_zero() || self.rare.is_some() {
            self.rare().lead = lead;
        }
    }

    /// Returns the minimum hold, if one is set.
    pub(super) fn minimum_hold(&self) -> Option<MinimumHold> {
        self.rare.as_ref()?.minimum_hold
    }

    fn loss(&self) -> Option<&Loss> {
        self.rare.as_ref()?.loss.as_ref()
    }

    fn rare(&mut self) -> &mut RareData {
        self.rare.get_or_insert_default()
    }
}

impl RenewalPlan {
    /// Makes the plan for this lease. The first renewal is due a third of the lease after `sent`,
    /// minus `earlier`.
    pub(crate) fn from(sent: Moment, ttl: LeaseTime, left: Option<u32>, earlier: Duration) -> Self {
        let due = sent + (ttl.duration() / 3).saturating_sub(earlier);
        Self {
            ttl,
            left,
            due,
            planned: None,
        }
    }

    /// Inserts a renewal at `early`, if the next renewal is due later.
    pub(crate) fn add(&mut self, early: Moment) {
        if early < self.due {
            let planned = std::mem::replace(&mut self.due, early);
            self.planned.get_or_insert(planned);
        }
    }

    /// Returns whether the next renewal may be sent early, together with others. False for an
    /// inserted early renewal. Also false if the number of renewals is limited, because early
    /// renewals would shorten the total time.
    pub(crate) fn is_regular(&self) -> bool {
        self.planned.is_none() && self.left.is_none()
    }

    /// Advances the plan after the renewal that was sent at `sent`.
    pub(crate) fn renewed(&mut self, sent: Moment) {
        self.left = self.left.map(|left| left.saturating_sub(1));
        let next = Self::next(sent, self.ttl);
        self.due = self
            .planned
            .take()
            .map_or(next, |planned| planned.min(next));
    }

    /// Returns the time of the renewal that follows the one sent at `sent`, when two thirds of the
    /// lease are left.
    pub(crate) fn next(sent: Moment, ttl: LeaseTime) -> Moment {
        sent + ttl.duration() / 3
    }
}

/// The initial values of an acquisition.
pub(crate) struct AcquisitionInit {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) holder: Holder,
    pub(crate) tokens: Option<TokenRange>,
    pub(crate) receipt: Receipt,
    pub(crate) unknown_outcome: bool,
    pub(crate) sent: Reading,
    /// The beginning of the hold: `sent`, or later for a grant by a release.
    pub(crate) since: Moment,
    /// The granted lease, counted from `sent`.
    pub(crate) granted: LeaseTime,
    /// The requested lease, which renewals use.
    pub(crate) lease: LeaseTime,
    pub(crate) is_lease_asked: bool,
    pub(crate) renewal: Option<RenewalPlan>,
    pub(crate) replication: Replication,
    /// The time by which a promoted replica may end the lease earlier.
    pub(crate) lead: Duration,
    pub(crate) counted: Counted,
}

#[cfg(test)]
impl AcquisitionInit {
    /// Makes the values for a lock that a guard holds, with a fixed lease and no token.
    pub(crate) fn of_guard(sent: Moment, lease: LeaseTime) -> Self {
        Self {
            name: LockName::new("x").unwrap(),
            owner: OwnerId::new(crate::backend::owner::ClientId::random(), 1),
            holder: Holder::Guard,
            tokens: None,
            receipt: Receipt::default(),
            unknown_outcome: false,
            sent: Reading {
                now: sent,
                skipped: 0,
            },
            since: sent,
            granted: lease,
            lease,
            is_lease_asked: true,
            renewal: None,
            replication: Replication::off(),
            lead: Duration::ZERO,
            counted: Counted::default(),
        }
    }
}

impl Acquisition {
    pub(crate) fn new(init: AcquisitionInit) -> Self {
        let valid_until = init.sent.now + init.granted.validity().saturating_sub(init.lead);
        let mut inner = Inner::new(init.lease, init.renewal, init.counted);
        inner.set_lead(init.lead);
        Self {
            name: init.name,
            owner: init.owner,
            holder: init.holder,
            token: init.tokens.map(|tokens| tokens.first()),
            since: init.since,
            replication: init.replication,
            receipt: init.receipt,
            chain: HandoffChain::of(init.tokens),
            unknown_outcome: init.unknown_outcome,
            is_lease_asked: init.is_lease_asked,
            holds: AtomicU32::new(1),
            state: AtomicU8::new(GuardState::Held as u8),
            valid_until: AtomicU64::new(valid_until.as_nanos() & !OVER),
            skipped: AtomicU64::new(init.sent.skipped),
            inner: Mutex::new(inner),
        }
    }

    /// Makes the acquisition of the next `holder` on the same grant, with its token and its
    /// position in the hand-off chain.
    ///
    /// Must be called only if no request of this acquisition is pending or has an unknown outcome,
    /// because the next acquisition would not receive the answer.
    pub(super) fn followed_by(
        &self,
        inner: &Inner,
        holder: &Holder,
        since: Moment,
        (token, chain): (Option<FencingToken>, HandoffChain),
    ) -> Self {
        let mut next = Inner::new(inner.lease, inner.renewal, inner.counted.another());
        next.set_lead(inner.lead());
        Self {
            name: self.name.clone(),
            owner: self.owner,
            holder: holder.clone(),
            token,
            since,
            replication: self.replication,
            receipt: self.receipt.clone(),
            chain,
            unknown_outcome: self.unknown_outcome,
            is_lease_asked: self.is_lease_asked,
            holds: AtomicU32::new(1),
            state: AtomicU8::new(GuardState::Held as u8),
            valid_until: AtomicU64::new(self.valid_until().as_nanos()),
            skipped: AtomicU64::new(self.skipped.load(Ordering::Acquire)),
            inner: Mutex::new(next),
        }
    }

    /// Returns the hold count.
    pub(crate) fn holds(&self) -> u32 {
        self.holds.load(Ordering::Relaxed)
    }

    /// Adds a hold for the thread that already holds the lock. Fails at [`MOST_HOLDS`].
    pub(crate) fn nest(&self) -> Result<(), Error> {
        let holds = self.holds();
        if holds >= MOST_HOLDS {
            return Err(Error::misuse(format!(
                "this thread holds it {MOST_HOLDS} times already, which is the limit"
            )));
        }
        self.holds.store(holds + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a nested hold of the holding thread. Returns `false`, with no change, for the last
    /// hold.
    pub(crate) fn end_nested(&self) -> bool {
        let holds = self.holds();
        let is_nested = holds > 1;
        if is_nested {
            self.holds.store(holds - 1, Ordering::Relaxed);
        }
        is_nested
    }

    /// Ends a hold, under the local lock's mutex. Returns the remaining hold count.
    pub(crate) fn end_hold(&self) -> u32 {
        let left = self.holds().saturating_sub(1);
        self.holds.store(left, Ordering::Relaxed);
        left
    }

    /// Returns the end of the validity.
    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire) & !OVER)
    }

    /// Returns the full lease that the next renewal sets, if the lock has not had its full lease
    /// yet: a direct grant had a shorter one, or another thread handed the lock off. `None` if no
    /// renewals are planned, and for kinds of locks without direct grants.
    pub(crate) fn lease_to_come(&self) -> Option<LeaseTime> {
        self.lease_to_come_of(&self.lock())
    }

    fn lease_to_come_of(&self, inner: &Inner) -> Option<LeaseTime> {
        if !self.name.profile().direct_grant {
            return None;
        }
        let (ttl, lead) = (inner.renewal?.ttl, inner.lead());
        let whole = (self.since + ttl.validity().saturating_sub(lead)).as_nanos() & !OVER;
        (self.valid_until().as_nanos() < whole).then_some(ttl)
    }

    /// Returns the remaining validity at `now`, if the lock has not had its full lease yet: see
    /// [`lease_to_come`](Self::lease_to_come). Otherwise returns `None`.
    pub(super) fn left_of_short_lease(&self, inner: &Inner, now: Moment) -> Option<Duration> {
        self.lease_to_come_of(inner).map(|_| self.remaining_at(now))
    }

    /// Returns the last recorded state. The lease may have ended since.
    pub(crate) fn recorded_state(&self) -> GuardState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// Returns whether the acquisition is valid at `now`, without a request. `false` is final.
    pub(crate) fn is_valid_at(&self, now: Moment) -> bool {
        !self.remaining_at(now).is_zero()
    }

    /// Returns the remaining validity at `now`. Zero is final.
    pub(crate) fn remaining_at(&self, now: Moment) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        let mut until = self.valid_until.load(Ordering::Acquire);
        // A renewal that read the clock before the deadline may extend the validity concurrently.
        // The first compare-and-exchange wins.
        while until & OVER == 0 && until <= now.as_nanos() {
            match self.exchange(until, until | OVER) {
                Ok(_) => return Duration::ZERO,
                Err(newer) => until = newer,
            }
        }
        if until & OVER == 0 {
            Moment::from_nanos(until).since(now)
        } else {
            Duration::ZERO
        }
    }

    /// Returns the remaining validity, reduced by all time that the clock may have skipped since
    /// the last confirmation. Zero is final only if [`remaining_at`](Self::remaining_at) is zero,
    /// too: otherwise the store may still confirm the lock.
    pub(crate) fn trusted_at(&self, reading: Reading) -> Duration {
        // Load `skipped` first: a confirmation writes it after `valid_until`, so the validity read
        // below is at least as new.
        let doubt = self.doubt_at(reading);
        self.remaining_at(reading.now).saturating_sub(doubt)
    }

    /// Returns how much time the clock may have skipped since the last confirmation.
    pub(crate) fn doubt_at(&self, reading: Reading) -> Duration {
        let skipped = if reading.skipped == 0 {
            0
        } else {
            self.skipped.load(Ordering::Acquire)
        };
        Duration::from_nanos(reading.skipped.saturating_sub(skipped))
    }

    /// Records that the store, queried at `sent`, confirmed the hold with `left` of the lease
    /// (`None`: no expiry). Changes nothing if the acquisition has ended, or if the clock has
    /// skipped no time since the last confirmation. Returns whether the validity became shorter.
    pub(crate) fn confirmed(&self, sent: Reading, left: Option<Duration>) -> bool {
        let inner = self.lock();
        let old = self.valid_until();
        if self.doubt_at(sent).is_zero() || self.has_ended() {
            return false;
        }
        let validity = |left| LeaseTime::new(left).map_or(Duration::ZERO, LeaseTime::validity);
        let end = left.map_or(old, |left| {
            sent.now + validity(left).saturating_sub(inner.lead())
        });
        self.confirm(old, sent, end.min(old)) && self.valid_until() < old
    }

    /// Moves the end of the validity to `end`, or to the old end minus the skipped time if that is
    /// later. Returns `false` if a reader has found the deadline passed.
    fn confirm(&self, old: Moment, sent: Reading, end: Moment) -> bool {
        let doubt = u64::try_from(self.doubt_at(sent).as_nanos()).unwrap_or(u64::MAX);
        let shortened = Moment::from_nanos(old.as_nanos().saturating_sub(doubt));
        let is_good = self
            .exchange(old.as_nanos(), shortened.max(end).as_nanos() & !OVER)
            .is_ok();
        if is_good && sent.skipped > 0 {
            self.skipped.fetch_max(sent.skipped, Ordering::AcqRel);
        }
        is_good
    }

    fn exchange(&self, until: u64, new: u64) -> Result<u64, u64> {
        self.valid_until
            .compare_exchange(until, new, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Makes a renewal due at once or, if one is queued or under way, makes another one follow it.
    /// Has no effect if there are no renewals or their number is limited. Returns whether a renewal
    /// is due now.
    pub(crate) fn make_due(&self, now: Moment) -> bool {
        let mut inner = self.lock();
        inner.changed = inner.renewing;
        if inner.changed {
            return false;
        }
        match &mut inner.renewal {
            Some(plan) if plan.left.is_none() => plan.add(now),
            _ => return false,
        }
        true
    }

    /// Returns when the timer must check the acquisition next: at the next renewal or at the end of
    /// the validity.
    pub(crate) fn next_check(&self, inner: &Inner) -> Moment {
        let end = self.valid_until();
        inner.renewal.map_or(end, |plan| plan.due.min(end))
    }

    /// Locks the mutable state. Lock order: after the local lock's mutex, before the timer's.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Decides whether the renewal that is sent at `sent` carries the owner's label: the first
    /// renewal does, then one in every two leases, and the first one after a failure. A label in
    /// each renewal would double the store's work.
    pub(crate) fn renews_label(&self, sent: Moment, lease: LeaseTime) -> bool {
        let mut inner = self.lock();
        let is_due = inner.label_due.is_none_or(|due| sent >= due);
        if is_due {
            inner.label_due = Some(sent + lease.duration() * (OwnerLabel::LEASES - 1));
        }
        is_due
    }

    /// Extends the validity to a full `lease` from `sent`, minus the `lead` of the replicas.
    /// Shortens the validity at most by the time that the clock may have skipped. Returns `false`
    /// if a reader has found the deadline passed.
    pub(crate) fn extended(
        &self,
        inner: &mut Inner,
        sent: Reading,
        lease: LeaseTime,
        lead: Duration,
    ) -> bool {
        let old = self.valid_until();
        let end = sent.now + lease.validity().saturating_sub(lead);
        let is_extended = self.confirm(old, sent, end);
        if is_extended {
            inner.lease = inner.lease.max(lease);
            if end > old {
                inner.set_lead(lead);
            }
        }
        is_extended
    }

    /// Shortens the validity if the replicas' `lead` exceeds the recorded lead, by the difference,
    /// and records the new lead. Returns whether the validity became shorter.
    pub(crate) fn shortened(&self, inner: &mut Inner, lead: Duration) -> bool {
        let more = lead.saturating_sub(inner.lead());
        if more.is_zero() || self.has_ended() {
            return false;
        }
        inner.set_lead(lead);
        inner.overlong = true;
        let more = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
        let mut until = self.valid_until.load(Ordering::Acquire);
        // A reader may set `OVER` concurrently, which is final.
        while until & OVER == 0 {
            match self.exchange(until, until.saturating_sub(more) & !OVER) {
                Ok(_) => return true,
                Err(newer) => until = newer,
            }
        }
        false
    }

    /// Sets the state to held or suspended, unless the acquisition has ended.
    pub(crate) fn set_suspended(&self, _inner: &mut Inner, suspended: bool) {
        if !self.has_ended() {
            let state = if suspended {
                GuardState::Suspended
            } else {
                GuardState::Held
            };
            self.state.store(state as u8, Ordering::Release);
        }
    }

    /// Returns whether the acquisition is lost or released.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(
            self.recorded_state(),
            GuardState::Lost | GuardState::Released
        )
    }

    /// Ends the acquisition and its renewals, because of a release.
    pub(crate) fn set_released(&self, inner: &mut Inner) {
        self.state
            .store(GuardState::Released as u8, Ordering::Release);
        inner.renewal = None;
        inner.counted.end();
    }

    /// Drops all listeners, after a release: no loss can follow.
    pub(crate) fn close_listeners(&self) {
        if let Some(rare) = &mut self.lock().rare {
            rare.listeners.clear();
        }
    }

    /// Ends the acquisition because of a loss, and calls the listeners.
    pub(crate) fn set_lost(&self, inner: &mut Inner, cause: LossCause) -> Loss {
        self.state.store(GuardState::Lost as u8, Ordering::Release);
        inner.renewal = None;
        inner.counted.end();
        Self::tell(inner, Loss::new(cause, inner.last_failure().cloned()))
    }

    /// Ends the renewals because they are used up, and notifies the holder before the lease ends.
    pub(crate) fn give_up_renewing(&self, inner: &mut Inner) {
        inner.renewal = None;
        self.set_suspended(inner, true);
        Self::tell(inner, Loss::new(LossCause::RenewalsUsedUp, None));
    }

    /// Records the loss and calls the listeners with it, unless a loss was recorded before. Returns
    /// the loss that was recorded first.
    fn tell(inner: &mut Inner, loss: Loss) -> Loss {
        let rare = inner.rare();
        if let Some(first) = &rare.loss {
            return first.clone();
        }
        for listener in rare.listeners.drain(..) {
            listener.tell(loss.clone());
        }
        rare.loss = Some(loss.clone());
        loss
    }

    /// Returns the recorded loss: it has happened, or it is expected because no renewals are left.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lock().loss().cloned()
    }

    /// Returns the loss of a lost acquisition as an error.
    pub(crate) fn lost_error(&self) -> Error {
        self.loss()
            .unwrap_or_else(|| Loss::new(LossCause::Expired, None))
            .to_error()
            .on(&self.name)
    }

    /// Adds a listener, or calls it at once if the loss is already known. After a release, drops
    /// it: no loss can follow.
    pub(crate) fn listen(&self, listener: Listener) {
        let mut inner = self.lock();
        match inner.loss() {
            Some(loss) => listener.tell(loss.clone()),
            None if !self.has_ended() => {
                notification::add(&mut inner.rare().listeners, listener, |it| &it.wanted);
            }
            None => {}
        }
    }

    #[cfg(test)]
    pub(crate) fn listeners(&self) -> usize {
        self.lock()
            .rare
            .as_ref()
            .map_or(0, |rare| rare.listeners.len())
    }

    /// Returns the ID with this lease for requests to the backend.
    pub(crate) fn id(&self, lease: LeaseTime) -> AcquisitionId {
        AcquisitionId::new(self.name.clone(), self.owner, lease, self.receipt.clone())
    }

    /// Returns the ID and the options for releasing the acquisition without a minimum hold.
    pub(crate) fn to_release(&self) -> (AcquisitionId, ReleaseOptions) {
        let options = self.chain.release_options(self.unknown_outcome, self.token);
        (self.id(self.lock().lease), options)
    }

    /// Returns the ID and the options for the regular release. If there is a minimum hold, the
    /// store keeps the lock busy after the release for the rest of it.
    pub(crate) fn to_end(&self, now: Moment) -> (AcquisitionId, ReleaseOptions) {
        let (id, options) = self.to_release();
        match self.lock().minimum_hold() {
            Some(minimum) => (id, minimum.apply_to(options, now)),
            None => (id, options),
        }
    }

    /// Sets a minimum hold of `time` from the beginning of this acquisition on, or prolongs the
    /// present one.
    pub(crate) fn keep(&self, time: LeaseTime, new_owner: impl FnOnce() -> OwnerId) {
        let until = self.since + time.duration();
        MinimumHold::prolong(&mut self.lock().rare().minimum_hold, until, new_owner);
    }

    /// Returns whether an attempt of this owner went unanswered.
    pub(crate) fn has_unknown_outcome(&self) -> bool {
        self.unknown_outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternating_causes_are_reported_once_until_a_success() {
        let mut inner = Inner::new(
            LeaseTime::new(Duration::from_secs(1)).unwrap(),
            None,
            Counted::default(),
        );
        let told = |inner: &mut Inner, causes: &[&str]| {
            let errors = causes.iter().map(|cause| Error::unavailable(*cause));
            errors.filter(|error| inner.note_failure(error)).count()
        };
        assert_eq!(
            told(
                &mut inner,
                &["refused", "no answer", "refused", "no answer"]
            ),
            2
        );
        inner.renewal_succeeded();
        assert_eq!(told(&mut inner, &["refused"]), 1);
        let new_each_time: Vec<_> = (0..100).map(|n| format!("after {n} ms")).collect();
        let new_each_time: Vec<_> = new_each_time.iter().map(String::as_str).collect();
        assert!(told(&mut inner, &new_each_time) < MOST_CAUSES);
    }

    #[test]
    fn growing_lead_of_replicas_shortens_once_and_ends_with_a_renewal() {
        let second = Duration::from_secs(1);
        let lease = LeaseTime::new(second * 30).unwrap();
        let sent = Moment::from_nanos(1_000_000_000);
        let acquisition = Acquisition::new(AcquisitionInit {
            lead: second,
            ..AcquisitionInit::of_guard(sent, lease)
        });
        let whole = sent + lease.validity();
        let short_by = |seconds: u32| {
            let end = acquisition.valid_until() + second * seconds;
            assert!(
                whole.since(end) <= Duration::from_nanos(1) && whole >= end,
                "{seconds} s"
            );
        };
        short_by(1);
        let shortened = |lead| acquisition.shortened(&mut acquisition.lock(), second * lead);
        assert!(!shortened(0) && !shortened(1));
        short_by(1);
        assert!(shortened(5) && !shortened(5));
        short_by(5);
        // A renewal with an earlier end changes neither the validity nor the recorded lead.
        let at = |now| Reading { now, skipped: 0 };
        let early =
            |lead| acquisition.extended(&mut acquisition.lock(), at(sent), lease, second * lead);
        assert!(early(9) && !shortened(5) && shortened(6));
        short_by(6);
        let renewed = sent + second * 10;
        assert!(acquisition.extended(&mut acquisition.lock(), at(renewed), lease, second * 2));
        assert_eq!(acquisition.valid_until().since(whole), second * 8);
        assert!(shortened(3));
        // An expired acquisition stays expired.
        assert!(!acquisition.is_valid_at(renewed + second * 30));
        assert!(!shortened(20));
    }

    #[test]
    fn renewal_after_a_look_at_the_deadline_extends_nothing() {
        let lease = LeaseTime::new(Duration::from_millis(300)).unwrap();
        let sent = Moment::from_nanos(1_000_000_000);
        let acquisition = Acquisition::new(AcquisitionInit::of_guard(sent, lease));
        let at = |now| Reading { now, skipped: 0 };
        let end = acquisition.valid_until();
        let renewed = sent + Duration::from_millis(100);
        assert!(
            acquisition.extended(&mut acquisition.lock(), at(renewed), lease, Duration::ZERO),
            "no check found the lock over before"
        );
        assert!(acquisition.is_valid_at(end));
        let end = acquisition.valid_until();
        assert!(!acquisition.is_valid_at(end));
        let renewed = sent + Duration::from_millis(200);
        assert!(
            !acquisition.extended(&mut acquisition.lock(), at(renewed), lease, Duration::ZERO),
            "the check at the deadline is final"
        );
        assert!(!acquisition.is_valid_at(end) && acquisition.valid_until() == end);
    }
}
