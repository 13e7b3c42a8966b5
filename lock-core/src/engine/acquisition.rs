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

/// The state of a held lock, as far as the client knows without asking the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GuardState {
    /// Held, and kept as it was asked for.
    Held,
    /// Still held, but its renewals fail, or no more are allowed; or the time of day was set ahead,
    /// as after a pause of a virtual machine, and the store has not confirmed it since.
    Suspended,
    /// The lease is over, or the store says that the lock is not ours any more. Final.
    Lost,
    /// Released. Final.
    Released,
}

const STATES: [GuardState; 4] = [
    GuardState::Held,
    GuardState::Suspended,
    GuardState::Lost,
    GuardState::Released,
];

/// One stretch of holding.
///
/// Both are read without the mutex of `inner`. `state` is written and `valid_until` extended under
/// it; a look that finds it over marks that ([`OVER`]) without.
pub(crate) struct Acquisition {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) holder: Holder,
    pub(crate) token: Option<FencingToken>,
    pub(crate) since: Moment,
    /// How many replicas must confirm its renewals.
    pub(crate) replication: Replication,
    receipt: Receipt,
    pub(super) chain: HandoffChain,
    /// Whether an acquire of this owner went unanswered: a copy of it may still arrive.
    unknown_outcome: bool,
    /// Whether the acquisition from the store was asked for with a lease of its own. If not, its
    /// lease is never shorter than that of the settings.
    pub(crate) is_lease_asked: bool,
    /// How many holds there are. To and from 0 under the local lock's mutex; above 1 only the
    /// thread that holds it changes it, and needs no mutex for that.
    holds: AtomicU32,
    state: AtomicU8,
    /// Nanoseconds; with [`OVER`] once a look at the clock has found that it is over.
    valid_until: AtomicU64,
    /// What the clock had skipped, in nanoseconds, when the store was last asked for that.
    skipped: AtomicU64,
    inner: Mutex<Inner>,
}

/// The lowest bit of `valid_until`: a look has found that it is over, and nothing extends it.
const OVER: u64 = 1;

/// The most holds of a thread, as in Java's `ReentrantReadWriteLock`: more are a runaway recursion.
pub(crate) const MOST_HOLDS: u32 = 65_535;

/// So many causes of failed renewals are told at most, until one succeeds.
const MOST_CAUSES: usize = 8;

/// What changes, beside what is read without a mutex.
pub(crate) struct Inner {
    /// The longest lease that was asked for so far.
    pub(crate) lease: LeaseTime,
    /// How it is renewed; `None` for a fixed lease, and when no more renewals are allowed.
    pub(crate) renewal: Option<RenewalPlan>,
    /// Whether a renewal of the timer's is queued or under way.
    pub(crate) renewing: bool,
    /// Whether the store reported a change since: it is renewed once more then.
    pub(crate) changed: bool,
    /// Whether the store may keep it for longer than we trust it: an extension is not confirmed, or
    /// was confirmed too late.
    pub(crate) overlong: bool,
    /// When the owner's label is to go along with a renewal again; `None`: with the next one.
    label_due: Option<Moment>,
    /// Whether its last renewal counts without the replicas that were asked for.
    pub(crate) degraded: bool,
    rare: Option<Box<RareData>>,
    /// Until it ends.
    counted: Counted,
}

/// What most acquisitions never have, apart: a client may hold very many.
#[derive(Default)]
struct RareData {
    /// What the last renewal failed with, since the last that did not.
    last_failure: Option<Error>,
    /// The causes that were told since then: two that alternate are told once each.
    told_failures: Vec<Error>,
    minimum_hold: Option<MinimumHold>,
    loss: Option<Loss>,
    listeners: Vec<Listener>,
    /// By how much the validity is shorter than the lease would allow, because replicas end that
    /// earlier.
    lead: Duration,
}

/// A callback for a loss, called at most once.
pub(crate) struct Listener {
    /// Called under the acquisition's mutex: it must neither block nor ask an acquisition anything.
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

/// How an acquisition is renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenewalPlan {
    pub(crate) ttl: LeaseTime,
    pub(crate) left: Option<u32>,
    pub(crate) due: Moment,
    /// When it would have been due if the next renewal did not come early: it is still due then, so
    /// that very many locks that were taken together are not renewed together.
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

    /// A renewal failed. Says whether that is to be told: once for each cause.
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

    /// What the last renewal failed with, since the last that did not.
    pub(crate) fn last_failure(&self) -> Option<&Error> {
        self.rare.as_ref()?.last_failure.as_ref()
    }

    /// Has the holder learn of this one if the lock is lost, without counting it as told.
    pub(crate) fn set_last_failure(&mut self, error: Error) {
        self.rare().last_failure = Some(error);
    }

    /// A renewal did not fail: a failure after it is news.
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

    /// Returns for how long the lock stays busy at least.
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
    /// With this lease; the first renewal is due a third of it after `sent`, or that much
    /// `earlier`.
    pub(crate) fn from(sent: Moment, ttl: LeaseTime, left: Option<u32>, earlier: Duration) -> Self {
        let due = sent + (ttl.duration() / 3).saturating_sub(earlier);
        Self {
            ttl,
            left,
            due,
            planned: None,
        }
    }

    /// Adds a renewal at `early`, if that is before the next one.
    pub(crate) fn add(&mut self, early: Moment) {
        if early < self.due {
            let planned = std::mem::replace(&mut self.due, early);
            self.planned.get_or_insert(planned);
        }
    }

    /// Whether the next renewal is one like all others: not an early one between two of them, and
    /// not one of a number, with which the time that is left would shrink.
    pub(crate) fn is_regular(&self) -> bool {
        self.planned.is_none() && self.left.is_none()
    }

    /// It was renewed by the request that was sent at `sent`.
    pub(crate) fn renewed(&mut self, sent: Moment) {
        self.left = self.left.map(|left| left.saturating_sub(1));
        let next = Self::next(sent, self.ttl);
        self.due = self
            .planned
            .take()
            .map_or(next, |planned| planned.min(next));
    }

    /// When the renewal after the one sent at `sent` is due: with two thirds of the lease left.
    pub(crate) fn next(sent: Moment, ttl: LeaseTime) -> Moment {
        sent + ttl.duration() / 3
    }
}

/// What an acquisition begins with.
pub(crate) struct AcquisitionInit {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) holder: Holder,
    pub(crate) tokens: Option<TokenRange>,
    pub(crate) receipt: Receipt,
    pub(crate) unknown_outcome: bool,
    pub(crate) sent: Reading,
    /// For how long it was granted from then on.
    pub(crate) granted: LeaseTime,
    /// For how long it was asked for: renewals ask for as much.
    pub(crate) lease: LeaseTime,
    pub(crate) is_lease_asked: bool,
    pub(crate) renewal: Option<RenewalPlan>,
    pub(crate) replication: Replication,
    /// By how much earlier replicas may end the lease.
    pub(crate) lead: Duration,
    pub(crate) counted: Counted,
}

#[cfg(test)]
impl AcquisitionInit {
    /// That of a guard, with a fixed lease and without a token.
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
            since: init.sent.now,
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

    /// The next acquisition on the same grant, for `holder`, with its token and its position.
    ///
    /// Only for an acquisition of which nothing is under way or unknown: its answers would not
    /// reach the next one.
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

    /// How many holds there are.
    pub(crate) fn holds(&self) -> u32 {
        self.holds.load(Ordering::Relaxed)
    }

    /// One hold more, for the thread that has one. Fails if it has too many.
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

    /// Ends a hold, of the thread that has it, unless it is the last one.
    pub(crate) fn end_nested(&self) -> bool {
        let holds = self.holds();
        let is_nested = holds > 1;
        if is_nested {
            self.holds.store(holds - 1, Ordering::Relaxed);
        }
        is_nested
    }

    /// Ends a hold, under the local lock's mutex. Returns how many are left.
    pub(crate) fn end_hold(&self) -> u32 {
        let left = self.holds().saturating_sub(1);
        self.holds.store(left, Ordering::Relaxed);
        left
    }

    /// Until when we may trust it.
    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire) & !OVER)
    }

    /// The lease that the first renewal gives it, if a release granted it for less.
    pub(crate) fn lease_to_come(&self) -> Option<LeaseTime> {
        if !self.name.profile().direct_grant {
            return None;
        }
        let (ttl, lead) = {
            let inner = self.lock();
            (inner.renewal?.ttl, inner.lead())
        };
        let whole = (self.since + ttl.validity().saturating_sub(lead)).as_nanos() & !OVER;
        (self.valid_until().as_nanos() < whole).then_some(ttl)
    }

    /// The state that was last recorded; time may have made it worse since.
    pub(crate) fn recorded_state(&self) -> GuardState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// Whether it is ours at `now`, by a look at the clock alone. A look that says no is final.
    pub(crate) fn is_valid_at(&self, now: Moment) -> bool {
        !self.remaining_at(now).is_zero()
    }

    /// What is left of the validity at `now`.
    pub(crate) fn remaining_at(&self, now: Moment) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        let mut until = self.valid_until.load(Ordering::Acquire);
        // A renewal that read the clock before its deadline may be about to extend it: whichever of
        // the two comes first stands.
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

    /// What is left of the validity, if all passed that the clock may have skipped since the store
    /// was last asked. Zero is not final: the store may confirm it.
    pub(crate) fn trusted_at(&self, reading: Reading) -> Duration {
        // First: with what a confirmation has set here goes the validity that it has set before.
        let doubt = self.doubt_at(reading);
        self.remaining_at(reading.now).saturating_sub(doubt)
    }

    /// How much the clock may have skipped since the store was last asked.
    pub(crate) fn doubt_at(&self, reading: Reading) -> Duration {
        let skipped = if reading.skipped == 0 {
            0
        } else {
            self.skipped.load(Ordering::Acquire)
        };
        Duration::from_nanos(reading.skipped.saturating_sub(skipped))
    }

    /// The store, asked at `sent`, has said that it is held, and for how long. Returns whether its
    /// validity ends earlier by that.
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

    /// Makes the validity last until `end`, or until what is left of the old one if all was skipped
    /// that may have been. False if a look has found that it was over.
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

    /// Has it renewed at once, if it is renewed without an end; if that is being done, once more
    /// afterwards. Returns whether it is due now.
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

    /// When the timer is to check it: at the next renewal, or when it is over.
    pub(crate) fn next_check(&self, inner: &Inner) -> Moment {
        let end = self.valid_until();
        inner.renewal.map_or(end, |plan| plan.due.min(end))
    }

    /// The mutex over everything that changes. Taken after a local lock's, before the timer's.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Whether the owner's label goes along with the renewal that is sent now: with the first one,
    /// with one in every two leases after that, and after a failure. With each, it would cost the
    /// store as much as the renewal.
    pub(crate) fn renews_label(&self, sent: Moment, lease: LeaseTime) -> bool {
        let mut inner = self.lock();
        let is_due = inner.label_due.is_none_or(|due| sent >= due);
        if is_due {
            inner.label_due = Some(sent + lease.duration() * (OwnerLabel::LEASES - 1));
        }
        is_due
    }

    /// Extends the validity to a full `lease` from `sent`, less the `lead` of the replicas; never
    /// shortens it. False if a look has found that it was over.
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

    /// Shortens the validity by as much as the `lead` of the replicas has grown since it was last
    /// extended. Returns whether it did.
    pub(crate) fn shortened(&self, inner: &mut Inner, lead: Duration) -> bool {
        let more = lead.saturating_sub(inner.lead());
        if more.is_zero() || self.has_ended() {
            return false;
        }
        inner.set_lead(lead);
        inner.overlong = true;
        let more = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
        let mut until = self.valid_until.load(Ordering::Acquire);
        // A look may find meanwhile that it is over, which is final.
        while until & OVER == 0 {
            match self.exchange(until, until.saturating_sub(more) & !OVER) {
                Ok(_) => return true,
                Err(newer) => until = newer,
            }
        }
        false
    }

    /// Held again, or suspended; not if it has ended.
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

    /// Lost or released.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(
            self.recorded_state(),
            GuardState::Lost | GuardState::Released
        )
    }

    /// Ends it by release. From here on nothing renews it.
    pub(crate) fn set_released(&self, inner: &mut Inner) {
        self.state
            .store(GuardState::Released as u8, Ordering::Release);
        inner.renewal = None;
        inner.counted.end();
    }

    /// Drops all listeners: there is nothing more to be told.
    pub(crate) fn close_listeners(&self) {
        if let Some(rare) = &mut self.lock().rare {
            rare.listeners.clear();
        }
    }

    /// Ends it by loss, and calls the listeners.
    pub(crate) fn set_lost(&self, inner: &mut Inner, cause: LossCause) -> Loss {
        self.state.store(GuardState::Lost as u8, Ordering::Release);
        inner.renewal = None;
        inner.counted.end();
        Self::tell(inner, Loss::new(cause, inner.last_failure().cloned()))
    }

    /// The renewals are used up: the holder is told while there is still time.
    pub(crate) fn give_up_renewing(&self, inner: &mut Inner) {
        inner.renewal = None;
        self.set_suspended(inner, true);
        Self::tell(inner, Loss::new(LossCause::RenewalsUsedUp, None));
    }

    /// Calls the listeners. The first cause stands, and is told once.
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

    /// Why it was lost, or will be.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lock().loss().cloned()
    }

    /// The loss as an error; for an acquisition that was lost.
    pub(crate) fn lost_error(&self) -> Error {
        self.loss()
            .unwrap_or_else(|| Loss::new(LossCause::Expired, None))
            .to_error()
            .on(&self.name)
    }

    /// Adds a listener, or calls it at once if the loss is known already.
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

    /// What the backend is told about it, with this lease.
    pub(crate) fn id(&self, lease: LeaseTime) -> AcquisitionId {
        AcquisitionId::new(self.name.clone(), self.owner, lease, self.receipt.clone())
    }

    /// What the backend is told when it is released, and how it must be closed.
    pub(crate) fn to_release(&self) -> (AcquisitionId, ReleaseOptions) {
        let options = self.chain.release_options(self.unknown_outcome, self.token);
        (self.id(self.lock().lease), options)
    }

    /// Returns what is sent for the regular end of the hold, after which the store keeps the lock
    /// for what is left of the minimum hold.
    pub(crate) fn to_end(&self, now: Moment) -> (AcquisitionId, ReleaseOptions) {
        let (id, options) = self.to_release();
        match self.lock().minimum_hold() {
            Some(minimum) => (id, minimum.apply_to(options, now)),
            None => (id, options),
        }
    }

    /// Has the store keep it for at least this time from its beginning.
    pub(crate) fn keep(&self, time: LeaseTime, new_owner: impl FnOnce() -> OwnerId) {
        let until = self.since + time.duration();
        MinimumHold::prolong(&mut self.lock().rare().minimum_hold, until, new_owner);
    }

    /// Whether an acquire of its owner went unanswered.
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
        // A renewal that would end earlier changes nothing, and not what is known of the lead.
        let at = |now| Reading { now, skipped: 0 };
        let early =
            |lead| acquisition.extended(&mut acquisition.lock(), at(sent), lease, second * lead);
        assert!(early(9) && !shortened(5) && shortened(6));
        short_by(6);
        let renewed = sent + second * 10;
        assert!(acquisition.extended(&mut acquisition.lock(), at(renewed), lease, second * 2));
        assert_eq!(acquisition.valid_until().since(whole), second * 8);
        assert!(shortened(3));
        // One that is over stays over.
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
