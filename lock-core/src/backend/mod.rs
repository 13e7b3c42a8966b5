//! [`Backend`]: the interface that a store implements.
//!
//! # The contract
//!
//! A backend implements mechanism: each call makes **one attempt** and returns its outcome. A
//! backend never waits for a lock, retries an attempt, renews without a request, counts nested
//! holds or starts timers. These are policy, implemented once in the engine above it: the local
//! queue, the wait loop, deadlines, re-entry, interrupts, renewal and loss.
//!
//! **What the engine does.**
//!
//! - It calls every method from several threads at once.
//! - It has at most one [`acquire`](Backend::acquire) under way for each name of a plain mutex, and
//!   otherwise for each owner. It repeats the attempt *with the same owner* if the reply was lost.
//!   After the wait has ended, it never uses the owner again.
//! - It calls [`release`](Backend::release) once, and again if the reply was lost. It closes an
//!   owner that has an unanswered request with [`Tombstone::Leave`].
//! - It calls [`renew`](Backend::renew) with at most [`RENEW_BATCH`] acquisitions (for permits, see
//!   [`PERMITS_PER_RENEWAL`]) whose leases are of about equal length. While replies are quick,
//!   there is one call at a time for each such length and each [node](NodeId). While a reply is
//!   late, other threads renew *other* acquisitions of that length and node, in at most four calls
//!   at once. A call that waits for another call delays its own renewals.
//! - Renewals that replicas must confirm are sent in separate calls, grouped by the required number
//!   of replicas, so a slow replica does not delay renewals that do not need it. An acquisition is
//!   in two calls at once only if its holder extends it during its renewal.
//! - It stops renewing before it releases. Its last call, made once, is [`close`](Backend::close).
//!
//! **What the engine does not do.** It holds no mutex of its own while it calls a backend. It does
//! not check which store it uses: it reads [`Abilities`]. It does not trust a grant for longer than
//! the lease minus the drift allowance, counted from before the call.
//!
//! **Time.** Every call carries an absolute moment, `by`, on the clock that the backend was opened
//! with. The call must return by then, with the outcome as it is known then. It may return a little
//! later (a scheduler's slice), but must not wait longer on purpose.
//!
//! **Replicas.** If [`Abilities::replication`] allows it, a backend waits until as many replicas
//! have confirmed an attempt or a renewal as its [`Replication`](crate::Replication) requires, at
//! most until `by`, and reports if fewer did. The owner then holds the lock in the store in spite
//! of that: whether to roll the grant back is policy.
//!
//! **What must hold in the store.** Only one owner holds a name at a time. A lease that is not
//! renewed ends. No request shortens a lease. A renewal never restores an acquisition that has
//! ended. A release frees only its own owner's acquisition. Tokens of a name grow strictly. A
//! closed owner is granted nothing for at least a lease.
//!
//! **Kinds.** A [`LockName`] contains the [kind](LockKind) of the lock. A store that has all kinds
//! ([`Abilities::all_kinds`]) grants a *shared* lock to several owners, each with its own lease.
//! The rules above then hold for each owner, and "one owner" means "no more owners than the kind
//! allows".
//!
//! Some kinds keep the order of arrival ([`LockKind::is_queued`]). If an attempt finds the lock
//! busy or another owner waiting, its owner enters the queue, provided that the caller
//! [waits](Attempt::waits) and that the semaphore has as many permits as it requests. Repeated
//! attempts of that owner keep its position. A release by an owner that does not hold the lock
//! removes the owner from the queue. An owner counts as waiting for the [`Attempt::presence`] of
//! its last attempt. The holder's release may grant a mutex to the next owner, if the
//! [attempt](Attempt::direct) of that owner allows it.
//!
//! While a writer waits, no new reader is granted, except a reader whose own thread [holds the
//! write lock](Attempt::beside). After the end of a write lock, waiting readers and writers
//! compete. A writer counts as waiting for the [`Attempt::presence`] of its last attempt. A store
//! with a queue for [all kinds](Abilities::queues_waiters) grants in the order of arrival in that
//! queue instead. Only an attempt with a [number](Attempt::direct) enters it, and an attempt of a
//! caller that does not wait may take what is free.
//!
//! **Extensions.** Features of only some stores are in separate traits: [`Admin`] for operators and
//! semaphores, [`Replicated`] for stores whose replicas can be promoted, [`Voter`] for nodes of a
//! quorum. A store that has an extension returns it from [`Backend::admin`],
//! [`Backend::replicated`] or [`Backend::voter`]; other stores keep the defaults of these methods.
//!
//! **Failures** report what is known of the outcome, because the engine acts on it:
//! [`Failure::Refused`] is a reply (nothing happened), [`Failure::NotSent`] means that nothing can
//! have happened, and [`Failure::Unknown`] that the store may have applied the request. When in
//! doubt, return `Unknown`.
//!
//! The conformance suite (crate `lock-conformance`) checks these rules against a real store. Run it
//! before you release a backend.

// From the top down: what a store can do (`abilities`) and what is wrong with it (`diagnosis`); an
// attempt, a grant's renewal and release, the wait for a release, and failures (`attempt`,
// `acquisition`, `watch`, `failure`); what is read of a lock (`lock_info`, `permits`); and what
// these contain: `owner`, `permit`, `replication`, `token`.

mod abilities;
mod acquisition;
mod admin;
mod attempt;
pub(crate) mod diagnosis;
mod failure;
mod lock_info;
pub(crate) mod owner;
pub(crate) mod permit;
mod permits;
pub(crate) mod replication;
pub(crate) mod token;
mod voter;
mod watch;

pub use abilities::{Abilities, ReplicaSupport, Waking};
pub use acquisition::{
    AcquisitionId, KeptLock, Receipt, Release, ReleaseOptions, Renewal, RenewalRequest, Tombstone,
};
pub use admin::{Admin, NO_FORCED_RELEASE, NO_LISTING, NO_SEMAPHORES, Replicated};
pub use attempt::{Answer, Attempt, Grant, RetryCause, Tokens};
pub use failure::{Failure, call_backend};
pub use lock_info::{HolderInfo, LockInfo, LockPage, PagePosition, Permits, Readers};
pub use owner::{ClientId, OwnerId, OwnerLabel, OwnerText};
pub use permits::{PermitChange, PermitOutcome};
pub use token::TokenRange;
pub use voter::{Proposal, ProposalAnswer, Voter};
pub use watch::{DirectGrant, NextOwner, Wake, Watch};

use crate::name::LockName;
use crate::time::Moment;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::kind::LockKind;
pub use crate::panics::contain;
pub use crate::threads::background::{BackgroundTask, run_in_background};
pub use crate::threads::limits::{no_descriptor, no_thread};
pub use crate::time::backoff::Backoff;
pub use crate::time::lease::{Lease, LeaseTime};

/// The largest number of acquisitions in one call of [`Backend::renew`].
///
/// A script that renews a hundred keys keeps a Redis server busy for about 0.2 ms; ten thousand at
/// once stalled other clients for 11 ms.
pub const RENEW_BATCH: usize = 100;

/// The number of permits that count as one acquisition in a call of [`Backend::renew`]. The first
/// acquisition of a call may have any number of permits; others are added only as long as the sum
/// is at most [`RENEW_BATCH`].
pub const PERMITS_PER_RENEWAL: u32 = 10;

/// The time between two attempts of a waiter, by default, so that the store knows that it still
/// waits: it keeps the waiter's position, and new readers out for a waiting writer.
pub const WAITER_ATTEMPTS: Duration = Duration::from_secs(1);

/// The time for which the store counts a waiter as present after its last attempt, so that three
/// attempts may be late or lost. A dead waiter delays the others for this time. It is the default
/// of [`Attempt::presence`].
pub const WAITER_PRESENCE: Duration = Duration::from_secs(3);

/// A store for locks. See the [module's documentation](self) for the contract.
///
/// # Examples
///
/// Mutexes in a store with compare-and-set, for which a map stands in here. Clients of a real store
/// read its clock, or all of them the time of day, instead of a [`Moment`] of their own:
///
/// ```
/// use lock_core::backend::*;
/// use lock_core::{Clock, LockName, LockOptions, Moment, SystemClock};
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// /// The value of one lock: its holder, and the owners that were closed.
/// #[derive(Clone, Default, Debug)]
/// struct Value { holder: Option<(OwnerId, Moment)>, closed: Vec<(OwnerId, Moment)> }
///
/// #[derive(Default, Debug)]
/// struct CompareAndSet(Mutex<HashMap<LockName, (u64, Value)>>);
///
/// impl CompareAndSet {
///     fn get(&self, name: &LockName) -> (u64, Value) {
///         self.0.lock().unwrap().get(name).cloned().unwrap_or_default()
///     }
///
///     fn set_if(&self, name: &LockName, version: u64, value: Value) -> bool {
///         let mut values = self.0.lock().unwrap();
///         let stored = values.entry(name.clone()).or_default();
///         let is_unchanged = stored.0 == version;
///         if is_unchanged { *stored = (version + 1, value); }
///         is_unchanged
///     }
///
///     fn update<T>(&self, name: &LockName, change: impl Fn(&mut Value, Moment) -> T) -> T {
///         loop {
///             let ((version, mut value), now) = (self.get(name), SystemClock.now());
///             value.holder = value.holder.filter(|(_, until)| now < *until);
///             value.closed.retain(|(_, until)| now < *until);
///             let answer = change(&mut value, now);
///             if self.set_if(name, version, value) { return answer; }
///         }
///     }
/// }
///
/// impl Backend for CompareAndSet {
///     fn acquire(&self, attempt: &Attempt<'_>, _: Moment) -> Result<Answer, Failure> {
///         Ok(self.update(attempt.name, |value, now| {
///             if value.closed.iter().any(|(owner, _)| *owner == attempt.owner) {
///                 return Answer::Busy(None);
///             }
///             let mut until = now + attempt.lease.duration();
///             match value.holder {
///                 Some((owner, end)) if owner != attempt.owner => {
///                     return Answer::Busy(Some(end.since(now)));
///                 }
///                 Some((_, end)) => until = until.max(end),
///                 None => {}
///             }
///             value.holder = Some((attempt.owner, until));
///             Answer::Granted(Grant::new(None))
///         }))
///     }
///
///     fn renew(
///         &self,
///         _: NodeId,
///         batch: &[RenewalRequest],
///         _: Moment,
///     ) -> Vec<Result<Renewal, Failure>> {
///         let renew = |AcquisitionId { name, owner, lease, .. }: &AcquisitionId| {
///             self.update(name, |value, now| match &mut value.holder {
///                 Some((holder, until)) if holder == owner => {
///                     *until = (now + lease.duration()).max(*until);
///                     Renewal::Extended
///                 }
///                 _ => Renewal::Gone,
///             })
///         };
///         batch.iter().map(|one| Ok(renew(&one.acquisition))).collect()
///     }
///
///     fn release(
///         &self,
///         acquisition: &AcquisitionId,
///         options: ReleaseOptions,
///         _: Moment,
///     ) -> Result<Release, Failure> {
///         let AcquisitionId { name, owner, lease, .. } = acquisition;
///         let kept = options.kept;
///         Ok(self.update(name, |value, now| {
///             if options.tombstone == Tombstone::Leave {
///                 value.closed.push((*owner, now + lease.duration()));
///             }
///             match value.holder {
///                 Some((holder, _)) if holder == *owner => {
///                     value.holder = kept.map(|it| (it.owner, now + it.time.duration()));
///                     Release::Freed
///                 }
///                 Some((holder, _)) if kept.is_some_and(|it| it.owner == holder) => {
///                     Release::Freed
///                 }
///                 _ => Release::Gone,
///             }
///         }))
///     }
///
///     fn inspect(&self, name: &LockName, _: Moment) -> Result<LockInfo, Failure> {
///         Ok(self.update(name, |value, now| match value.holder {
///             Some((owner, until)) => {
///                 let owner = OwnerText::new(&owner.to_string());
///                 LockInfo::held(HolderInfo::new(owner, Some(until.since(now)), 1))
///             }
///             None => LockInfo::FREE,
///         }))
///     }
///
///     fn abilities(&self) -> Abilities {
///         let (interval, jitter) = (Duration::from_millis(50), Duration::from_millis(10));
///         Abilities::full().tokens(false).waking(Waking::Polls { interval, jitter })
///     }
/// }
///
/// let store: Arc<dyn Backend> = Arc::new(CompareAndSet::default());
/// let client = lock_core::builder().backend(store).connect()?;
/// let lock = client.mutex("orders")?;
/// let guard = lock.lock_with(&LockOptions::new().lease(Duration::from_secs(10)))?;
/// assert!(client.mutex("orders")?.inspect()?.holder.is_some());
/// guard.unlock()?;
/// assert!(lock.inspect()?.holder.is_none());
/// assert!(lock.force_unlock().unwrap_err().is_unsupported());
/// # Ok::<(), lock_core::Error>(())
/// ```
pub trait Backend: Send + Sync + fmt::Debug {
    /// Tries once to acquire the lock for `attempt.owner`.
    ///
    /// If that owner holds the lock already, the request repeats one whose reply was lost: grant it
    /// again with the same token, and make sure that at least a full lease is left from now. If
    /// that owner was closed with a tombstone, return [`Answer::Busy`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure>;

    /// Extends the leases of `batch`, each independently of the others: a failed renewal must not
    /// affect the rest.
    ///
    /// Returns one answer for each request, in the order of `batch`. Extends an acquisition only if
    /// its owner still holds it, to its own lease counted from now, and never shortens it.
    ///
    /// A call must not wait for another call of the same node: the engine makes a second call when
    /// the first does not return in time.
    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>>;

    /// Releases the lock if this acquisition's owner still holds it, and wakes the waiters. With
    /// [`ReleaseOptions::kept`] the lock passes to another owner.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure>;

    /// Sends a release for a caller that does not wait for the reply. Returns when the request has
    /// been sent, or is queued to be sent with those of other callers. Calls `done` exactly once
    /// with the result of the [`release`](Backend::release).
    ///
    /// A backend that can have several pending requests overrides this method. The default waits
    /// for the reply and calls `done` before it returns. An override may call `done` later, on a
    /// thread of the backend or during the call of another caller. If no reply comes, it calls
    /// `done` with [`Failure::Unknown`] at `by` or soon after. So `done` must be short, must not
    /// wait, and must not call the backend.
    ///
    /// A later request for the same name does not overtake this one, with two exceptions: a
    /// repetition of this release, and a release that the store did not run, so that the backend
    /// sent it again. In the second case an attempt may find the lock still held.
    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        done(self.release(acquisition, closing, by));
    }

    /// Returns the holder with its label and the remaining time of its lease, the readers of a
    /// read-write lock, and the permits of a semaphore. Changes nothing. A replica never answers
    /// it.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure>;

    /// Returns the holder as [`inspect`](Backend::inspect) does, if it is this acquisition's owner.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        Ok(self
            .inspect(&acquisition.name, by)?
            .held_by(acquisition.owner))
    }

    /// Calls `wake` at every release of `name` by any client, and once whenever releases may have
    /// been missed (after a reconnect). It does so from the return of this call until the [`Watch`]
    /// is dropped. Spurious calls of `wake` are allowed.
    ///
    /// Not called by the engine if [`Abilities::waking`] is [`Waking::Polls`]. The default is
    /// unsupported.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn watch(&self, _name: &LockName, _wake: Arc<dyn Wake>, _by: Moment) -> Result<Watch, Failure> {
        Err(admin::unsupported("this store does not publish releases"))
    }

    /// Returns the node that renews this name *now*. Called for each renewal; must be cheap and not
    /// block. A slow or dead node delays only its own renewals.
    ///
    /// The default has one node.
    fn renewal_node(&self, _name: &LockName) -> NodeId {
        NodeId::new(0)
    }

    /// Returns the features that this store supports in its wire format. Must not change while the
    /// store is open.
    fn abilities(&self) -> Abilities;

    /// Waits until this moment of the system clock, at most, for unsent requests whose callers do
    /// not wait. Called when the client is dropped, perhaps at the end of the process. Most stores
    /// have no such requests.
    fn close(&self, until: Moment) {
        let _no_wait = until;
    }

    /// Returns the store's [`Admin`] extension, if it has one.
    fn admin(&self) -> Option<&dyn Admin> {
        None
    }

    /// Returns the store's [`Replicated`] extension, if leases may end earlier on a replica.
    fn replicated(&self) -> Option<&dyn Replicated> {
        None
    }

    /// Returns the store's votes as a node of a quorum; `None` if it cannot be one.
    fn voter(&self) -> Option<&dyn Voter> {
        None
    }
}

/// The callback with the result of a release that no caller waits for: see
/// [`Backend::submit_release`].
pub type OnReleased = Box<dyn FnOnce(Result<Release, Failure>) + Send>;

/// The node of a backend that renews a lock. The engine has one renewal worker for each node, and
/// spare workers while a reply is late.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeId(u64);

impl NodeId {
    /// Makes the node of this number. The backend chooses the numbers.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
fn _object_safe(_: &dyn Backend) {}
