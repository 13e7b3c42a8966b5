//! [`Backend`]: the interface that a store implements.
//!
//! # The contract
//!
//! A backend implements the mechanism: each call makes **one attempt** and returns its outcome. A
//! backend never waits for a lock, retries an attempt, renews without a request, counts nested
//! holds or starts timers. The policy is implemented once, in the engine that calls the backend:
//! the local queue, the wait loop, deadlines, re-entry, interrupts, renewal and loss.
//!
//! **What the engine does.**
//!
//! - It may call every method from several threads at once.
//! - For a plain mutex it has at most one [`acquire`](Backend::acquire) under way for each name,
//!   and for other kinds at most one for each owner. If a reply was lost, it repeats the attempt
//!   *with the same owner*. After the wait has ended, it makes no further attempt with this owner.
//! - It repeats a [`release`](Backend::release) that failed because the store was unavailable,
//!   until the lease has ended. If a request of the owner was not answered, the release closes the
//!   owner by [`Tombstone::Leave`].
//! - It calls [`renew`](Backend::renew) with at most [`RENEW_BATCH`] acquisitions (for permits, see
//!   [`PERMITS_PER_RENEWAL`]) whose leases are of about equal length. While replies are quick,
//!   there is one call at a time for each such length and each [node](NodeId). While a reply is
//!   late, other threads renew *other* acquisitions of the same length and node, in at most four
//!   calls at once. So a call must not wait for another call: otherwise its renewals are late, too.
//! - Renewals that replicas must confirm are sent in separate calls, grouped by the required number
//!   of replicas, so that a slow replica does not delay renewals that do not need its confirmation.
//!   An acquisition is in two calls at once only if its holder extends it during its renewal.
//! - Once it has begun to release an acquisition, it adds no renewal of it; a renewal that is
//!   already under way may still arrive. It calls [`close`](Backend::close) once, when the client
//!   ends. Afterwards it only repeats releases that are still unconfirmed.
//!
//! **What the engine does not do.** It holds no mutex of its own while it calls a backend. Its
//! behaviour does not depend on the type of the store, but only on the store's [`Abilities`]. It
//! does not trust a grant for longer than the lease minus an allowance for clock drift, counted
//! from before the call.
//!
//! **Time.** Every request carries an absolute moment, `by`, on the clock with which the backend
//! was opened. The call must return by this moment, with the outcome as far as it is known by then.
//! It may return a little later (a scheduler's time slice), but must not wait longer on purpose.
//!
//! **Replicas.** If [`Abilities::replication`] allows it, a backend waits until as many replicas
//! have confirmed an attempt or a renewal as its [`Replication`](crate::Replication) requires, at
//! most until `by`. If fewer have confirmed it, the backend reports that, and the owner still holds
//! the lock in the store: the engine decides whether to release the lock.
//!
//! **What must hold in the store.** Only one owner holds a name at a time. A lease that is not
//! renewed ends. No request shortens a lease. A renewal never restores an acquisition that has
//! ended. A release frees only its own owner's acquisition. Each token that is assigned for a name
//! is greater than all earlier tokens of the name, also after the store has lost its data: so a new
//! counter begins with the time of day in microseconds. A closed owner is granted nothing for at
//! least a lease.
//!
//! **Kinds.** A [`LockName`] contains the [kind](LockKind) of the lock. A store that has all kinds
//! ([`Abilities::all_kinds`]) grants a *shared* lock to several owners, each with its own lease.
//! For shared locks the rules above hold for each owner, and "only one owner" means "no more owners
//! than the kind allows".
//!
//! Some kinds are granted in the order of arrival ([`LockKind::is_queued`]). If an attempt finds
//! the lock busy or another owner waiting, its owner enters the queue, unless the caller does not
//! [wait](Attempt::waits), or a semaphore has fewer permits than the attempt requests. Repeated
//! attempts keep the owner's position. A release by an owner that does not hold the lock removes
//! the owner from the queue (but see [`ReleaseOptions::keeps_place`]). An owner counts as waiting
//! until the time [`Attempt::presence`] has passed since its last attempt. The holder's release may
//! grant a mutex to the next owner, if the [attempt](Attempt::direct) of that owner allows it.
//!
//! For the other kinds: while a writer waits, no new reader is granted, except a reader whose own
//! thread [holds the write lock](Attempt::beside). (With the setting `writers=equal`, a waiting
//! writer keeps no reader out.) After the release of a write lock, waiting readers and writers
//! compete. A writer counts as waiting until the time [`Attempt::presence`] has passed since its
//! last attempt.
//!
//! A store with a queue for [all kinds](Abilities::queues_waiters) grants locks of these kinds,
//! too, in the order of its queue. Of these kinds, only an attempt with a [number](Attempt::direct)
//! enters the queue, and an attempt whose caller does not wait may take a free lock although others
//! wait.
//!
//! **Extensions.** Features of only some stores are in separate traits: [`Admin`] for operators and
//! semaphores, [`Replicated`] for stores whose replicas can be promoted, [`Voter`] for nodes of a
//! quorum. A store that has an extension returns it from [`Backend::admin`],
//! [`Backend::replicated`] or [`Backend::voter`]. The defaults of these methods return `None`.
//!
//! **Failures** report what is known of the outcome, because the engine acts on this:
//! [`Failure::Refused`] means that the store replied and did nothing, [`Failure::NotSent`] that
//! nothing can have happened, and [`Failure::Unknown`] that the store may have applied the request.
//! When in doubt, return `Unknown`. [`Failure::Final`] is for stores that do not record the owner.
//!
//! The conformance suite (crate `lock-conformance`) checks these rules against a real store. Run it
//! before you release a backend.

// From the top down: the features of a store (`abilities`) and the findings about its settings
// (`diagnosis`); an attempt (`attempt`), renewal and release (`acquisition`), notification of
// releases (`watch`), and failures (`failure`); the extensions (`admin`, `voter`); the state of a
// lock (`lock_info`) and changes of a semaphore (`permits`); and the types that these use: `owner`,
// `permit`, `replication`, `token`.

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
/// A script that renews a hundred keys keeps a Redis server busy for about 0.2 ms. A script for ten
/// thousand keys stalled other clients for 11 ms.
pub const RENEW_BATCH: usize = 100;

/// The number of permits that count as one acquisition in a call of [`Backend::renew`]. The first
/// acquisition of a call may have any number of permits. Further acquisitions are added only while
/// the sum is at most [`RENEW_BATCH`].
pub const PERMITS_PER_RENEWAL: u32 = 10;

/// The default time between two attempts of a waiter, so that the store counts the waiter as
/// present. Attempts for a plain mutex in a store that [queues](Abilities::queues_waiters) all
/// waiters are up to three times as rare. While a waiter is present, the store keeps its position
/// in the queue and, if it is a writer, keeps new readers out.
pub const WAITER_ATTEMPTS: Duration = Duration::from_secs(1);

/// The default of [`Attempt::presence`]: the time for which the store counts a waiter as present
/// after its last attempt, so that two attempts in a row may be late or lost. A dead waiter delays
/// the other waiters for this time.
pub const WAITER_PRESENCE: Duration = Duration::from_secs(3);

/// A store for locks. See the [module's documentation](self) for the contract.
///
/// # Examples
///
/// Mutexes in a store with compare-and-set. Here a map takes the place of the store. With a real
/// store, all clients must compare leases by one clock, the store's clock or the time of day, and
/// not each by a [`Moment`] of its own as here:
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
    /// If this owner holds the lock already, the attempt repeats an earlier one whose reply was
    /// lost, or confirms a [direct grant](DirectGrant): grant the lock again with the same token,
    /// and make sure that at least a full lease is left from now. If this owner was closed with a
    /// tombstone, return [`Answer::Busy`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure>;

    /// Extends the leases of the acquisitions in `batch`. Each renewal is independent: a failed one
    /// must not affect the others.
    ///
    /// Returns one answer for each request, in the order of `batch`. Extends a lease only if the
    /// owner still holds the lock, to the lease in the request, counted from now. Never shortens a
    /// lease.
    ///
    /// A call must not wait for another call for the same node, because the engine makes a second
    /// call when the first does not return in time.
    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>>;

    /// Releases the lock if this acquisition's owner still holds it, and wakes the waiters. With
    /// [`ReleaseOptions::kept`] the lock passes to another owner instead of becoming free.
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
    /// been sent, or is queued behind the requests of other callers. Calls `done` exactly once,
    /// with the result that [`release`](Backend::release) would return.
    ///
    /// The default waits for the reply and calls `done` before it returns. A backend that can have
    /// several pending requests overrides this method, and may call `done` later, on a thread of
    /// the backend or during the call of another caller. So `done` must be short, must not wait,
    /// and must not call the backend. If no reply arrives, an override calls `done` with
    /// [`Failure::Unknown`] at `by` or soon after.
    ///
    /// A later request for the same name must not overtake this release, with two exceptions. A
    /// repetition of this release may. Any request may if the store did not run the release and the
    /// backend sends it again: then an attempt may find the lock still held.
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
    /// read-write lock, and the permits of a semaphore. Changes nothing. The answer must not come
    /// from a replica.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure>;

    /// Returns the holder as [`inspect`](Backend::inspect) does, if the holder is this
    /// acquisition's owner; otherwise `None`. For a [shared](LockKind::is_shared) lock, returns
    /// the owner's own share, if all of it is left. The default does not do this.
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

    /// Registers `wake` as the callback for the releases of `name`. From the return of this call
    /// until the [`Watch`] is dropped, the backend calls it at every release by any client, and
    /// once whenever it may have missed releases, as after a reconnect. Spurious calls of `wake`
    /// are allowed.
    ///
    /// The engine does not call this method if [`Abilities::waking`] is [`Waking::Polls`]. The
    /// default returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn watch(&self, _name: &LockName, _wake: Arc<dyn Wake>, _by: Moment) -> Result<Watch, Failure> {
        Err(admin::unsupported("this store does not publish releases"))
    }

    /// Returns the node that would renew this name *now*. Called for each renewal, so it must be
    /// cheap and must not block. The engine sends the renewals of each node separately, so that a
    /// slow or dead node delays only its own renewals.
    ///
    /// The default always returns the node of number 0.
    fn renewal_node(&self, _name: &LockName) -> NodeId {
        NodeId::new(0)
    }

    /// Returns the features that this store supports in its wire format. The result must not change
    /// while the store is open.
    fn abilities(&self) -> Abilities;

    /// Waits for requests that are still to be sent and whose callers do not wait, at most until
    /// the moment `until` of the system clock. Called when the client is dropped: the process may
    /// exit afterwards, and then these requests would be lost. Most stores have no such requests,
    /// so the default does not wait.
    fn close(&self, until: Moment) {
        let _no_wait = until;
    }

    /// Returns the store's [`Admin`] extension, if it has one.
    fn admin(&self) -> Option<&dyn Admin> {
        None
    }

    /// Returns the store's [`Replicated`] extension, if leases may end earlier on a replica than on
    /// its master.
    fn replicated(&self) -> Option<&dyn Replicated> {
        None
    }

    /// Returns the store's [`Voter`] extension; `None` if the store cannot be a node of a quorum.
    fn voter(&self) -> Option<&dyn Voter> {
        None
    }
}

/// The callback that gets the result of a release for which no caller waits: see
/// [`Backend::submit_release`].
pub type OnReleased = Box<dyn FnOnce(Result<Release, Failure>) + Send>;

/// The node of a backend that renews a lock. The engine renews the locks of each node on separate
/// threads.
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
