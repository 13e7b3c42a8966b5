//! [`Backend`]: the interface that a store implements.
//!
//! # The contract
//!
//! A backend is mechanism: each call makes **one attempt** and returns its outcome. A backend never
//! waits for a lock, retries an attempt, renews without a request, counts nested holds or starts
//! timers. That is policy, written once in the engine above it: the local queue, the wait loop,
//! deadlines, re-entry, interrupts, renewal and loss.
//!
//! **What the engine does.**
//!
//! - It calls every method from several threads at once.
//! - It has at most one [`acquire`](Backend::acquire) under way for each name (one contender per
//!   client), and repeats it *with the same owner* when the reply was lost. It never uses an owner
//!   again after that wait has ended.
//! - It calls [`release`](Backend::release) once, and again if the reply was lost. It closes an
//!   owner that has an unanswered request with [`Tombstone::Leave`].
//! - It calls [`renew`](Backend::renew) with at most [`RENEW_BATCH`] acquisitions
//!   ([`PERMITS_PER_RENEWAL`]) with leases of about one length, and with one call at a time for
//!   each such length and each [node](NodeId) that the backend named, while replies are quick.
//!   While a reply is late, other threads renew *other* acquisitions of that length and node, with
//!   at most four calls under way. A call that waits for another one delays the renewals in it.
//! - Renewals that replicas must confirm have calls of their own, for each number of replicas as
//!   many: a replica that lags delays no renewal that does not need it. An acquisition is in two
//!   calls at once only if its holder extends it, too.
//! - It stops renewing before it releases. Its last call, made once, is [`leave`](Backend::leave).
//!
//! **What the engine does not do.** It holds no mutex of its own while it calls a backend. It does
//! not ask what kind of store this is: it reads [`Abilities`]. It does not trust a grant for longer
//! than the lease less the drift allowance, counted from before the call.
//!
//! **Time.** Every call carries an absolute moment, `by`, on the clock that the backend was opened
//! with. The call must return by then, with what is known at that moment. It may return a little
//! later (a scheduler's slice), but must not wait for longer.
//!
//! **Replicas.** If [`Abilities::replication`] says so, a backend waits until as many replicas have
//! confirmed an attempt or a renewal as its [`Replication`] asks for, at most until `by`, and
//! reports if fewer did. The owner then has the lock in the store all the same: whether to roll it
//! back is policy.
//!
//! **What must hold in the store.** Only one owner holds a name at a time. A lease that is not
//! renewed ends. No request shortens a lease. A renewal never restores an acquisition that has
//! ended. A release frees only its own owner's acquisition. Tokens of a name grow strictly. A
//! closed owner is granted nothing for at least a lease.
//!
//! **Kinds.** A [`LockName`] says of which [kind](LockKind) the lock is. A store that has all kinds
//! ([`Abilities::all_kinds`]) grants a *shared* one to several owners, each with its own lease:
//! what follows holds for each owner, and "one owner" is "no more than the kind allows". Owners in
//! the order of arrival ([`LockKind::is_queued`]): an attempt that finds the lock busy, or another
//! owner waiting, enters the queue, if its caller [waits](Attempt::waits), and if there are as many
//! permits as it asks for; repeated attempts of that owner keep its position, and a release of an
//! owner that does not hold the lock ends it. The owner counts as waiting for the
//! [`Attempt::presence`] of its last attempt. The holder's release may grant a fair lock to the
//! next owner, if its [attempt](Attempt::direct) allows it. While a writer waits, no new reader is
//! granted, except [beside](Attempt::beside) the writer of its own thread; the end of a write lock
//! lets both compete. A writer counts as waiting for [`WAITER_PRESENCE`] after its last attempt.
//!
//! **Failures** say what is known, because the engine acts on it: [`Failure::Refused`] is a reply
//! (nothing happened), [`Failure::NotSent`] means that nothing can have happened, and
//! [`Failure::Unknown`] that the request may have been applied. When in doubt, return `Unknown`.
//!
//! The conformance suite (crate `lock-conformance`) checks all of this against a real store. Run it
//! before you release a backend.

// From the top down: what a store can do (`abilities`) and what is wrong with it (`diagnosis`); an
// attempt, a grant's renewal and release, the wait for a release, and failures (`attempt`,
// `acquisition`, `watch`, `failure`); what is read of a lock (`lock_info`, `permits`); and what
// these contain: `owner`, `permit`, `replication`, `token`.

mod abilities;
mod acquisition;
mod attempt;
pub(crate) mod diagnosis;
mod failure;
mod lock_info;
pub(crate) mod owner;
pub(crate) mod permit;
mod permits;
pub(crate) mod replication;
pub(crate) mod token;
mod watch;

pub use abilities::{Abilities, ReplicaSupport, Waking};
pub use acquisition::{
    AcquisitionId, KeptLock, Receipt, Release, ReleaseOptions, Renewal, RenewalRequest, Tombstone,
};
pub use attempt::{Answer, Attempt, Grant, RetryCause, Tokens};
pub use failure::{Failure, call_backend};
pub use lock_info::{HolderInfo, LockInfo, LockPage, PagePosition, Permits, Readers};
pub use owner::{ClientId, OwnerId, OwnerLabel, OwnerText};
pub use permits::{PermitChange, PermitOutcome};
pub use token::TokenRange;
pub use watch::{DirectGrant, FoundBusyBy, NextOwner, Wake, Watch};

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::time::Moment;
use diagnosis::Finding;
use replication::Replication;
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

/// How many permits count as one acquisition in such a call: the first of a call may have any
/// number, and with the others there are no more than [`RENEW_BATCH`].
pub const PERMITS_PER_RENEWAL: u32 = 10;

/// The time between two attempts of a waiter, so that the store knows that it still waits: of a
/// [write lock](LockKind::Write), to keep new readers out, and by default in the order of arrival,
/// to keep its position.
pub const WAITER_ATTEMPTS: Duration = Duration::from_secs(1);

/// The time for which the store counts such a waiter as present after its last attempt, so that
/// three attempts may be late or lost. A dead waiter delays the others for so long. In the order of
/// arrival that is the default of [`Attempt::presence`].
pub const WAITER_PRESENCE: Duration = Duration::from_secs(3);

/// A store for locks. See the [module's text](self) for the contract.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Tries once to take the lock for `attempt.owner`.
    ///
    /// If that owner holds it already, the request repeats one whose reply was lost: grant it again
    /// with the same token, and make sure that at least a full lease is left from now. If that
    /// owner was closed with a tombstone, return [`Answer::Busy`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure>;

    /// Extends the leases of `batch`, each on its own: the failure of one must not affect the
    /// others.
    ///
    /// Returns one answer for each request, in the same order. An acquisition is extended only if
    /// its owner still holds it, to its own lease counted from now, and is never shortened.
    ///
    /// A call must not wait for another call of the same node: the engine makes a second call
    /// because the first hangs.
    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>>;

    /// Releases the lock if this acquisition's owner still holds it, and wakes the waiters. With
    /// [`ReleaseOptions::kept`] it is another owner's then.
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

    /// Like [`release`](Backend::release), for a caller that does not wait for the reply: returns
    /// when the request has been sent, or is about to leave with those of other callers, and calls
    /// `done` with its result exactly once.
    ///
    /// A backend that can have several pending requests overrides this. The default waits for the
    /// reply and calls `done` before it returns. An override may call `done` later, on a thread of
    /// the backend or of another caller, during that caller's call; and at `by` or soon after with
    /// [`Failure::Unknown`] if no reply came. So `done` must be short, must not wait, and must not
    /// call the backend.
    ///
    /// A later request for the same name does not overtake this one, unless it repeats it, or the
    /// store did not run this one and the backend sent it again: then an attempt may find the lock
    /// still held.
    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        done(self.release(acquisition, closing, by));
    }

    /// Returns the holder with its label and what is left of its lease, the readers of a read-write
    /// lock and the permits of a semaphore, and changes nothing. Never answered from a replica.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure>;

    /// Like [`inspect`](Backend::inspect), for a waiter, which asks often and takes no decision
    /// about safety: one request to the server that is known to keep the lock, and no label. A
    /// backend whose `inspect` asks for more overrides this.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn peek(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.inspect(name, by)
    }

    /// The longest time after which a waiter asks again, although the store tells it of releases:
    /// a foreign client may not publish its own. `None`: not before the holder's lease can be over.
    fn poll_pause(&self, _name: &LockName, _found_by: FoundBusyBy) -> Option<Duration> {
        None
    }

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

    /// Releases the lock of any holder, wakes the waiters, and returns whether it was held. A value
    /// in another format is not changed, and reported as
    /// [`ErrorKind::ForeignFormat`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure>;

    /// Changes a [semaphore](LockKind::Permits), or one of its permits, once: a request whose
    /// outcome is unknown is not sent again.
    ///
    /// Called only if [`Abilities::all_kinds`] says so.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn change_permits(
        &self,
        _name: &LockName,
        _change: PermitChange,
        _by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        Err(Failure::NotSent(Error::new(
            ErrorKind::Unsupported,
            "this store has no semaphores",
        )))
    }

    /// Calls `wake` at every release of `name` by any client, and once whenever releases may have
    /// been missed (after a reconnect), from the return of this call until the [`Watch`] is
    /// dropped. Spurious calls are allowed.
    ///
    /// Never called if [`Abilities::waking`] says [`Waking::Polls`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure>;

    /// Returns the node that renews this name *now*. Called for each renewal; must be cheap and not
    /// block. A slow or dead node delays only its own renewals.
    fn renewal_node(&self, name: &LockName) -> NodeId;

    /// Returns by how much earlier than on the server that grants it the lease of this lock may end
    /// on a replica that counts under this policy, because the clocks of the servers differ: the
    /// lock is trusted for as much less. Called when it was granted or renewed; must be cheap and
    /// not block. A store that learns that it has grown calls
    /// [`Notices::replica_lead_grew`](crate::Notices::replica_lead_grew).
    ///
    /// Zero in the default.
    fn replica_lead(
        &self,
        _name: &LockName,
        _lease: LeaseTime,
        _replication: Replication,
    ) -> Duration {
        Duration::ZERO
    }

    /// Returns what this store supports in its wire format. Must not change while it is open.
    fn abilities(&self) -> Abilities;

    /// Returns what of the store's settings and state matters for locks, the good and the bad.
    /// Changes nothing there. What cannot be looked at is
    /// [`Unknown`](crate::FindingLevel::Unknown).
    ///
    /// Nothing in the default.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: the store cannot be asked at all.
    fn diagnose(&self, _by: Moment) -> Result<Vec<Finding>, Failure> {
        Ok(Vec::new())
    }

    /// Like [`inspect`](Self::inspect), for several locks, in few requests and with all that the
    /// store can tell of [`LockInfo`], also if what a mutex is asked for is a read-write lock.
    /// Returns one answer for each name, in the same order.
    ///
    /// The default asks for one after the other, and for the holder alone.
    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        names.iter().map(|name| self.inspect(name, by)).collect()
    }

    /// Returns a page of the locks that are held and whose names match `pattern`, a glob as in
    /// Redis' `SCAN .. MATCH`. Changes nothing, and asks for a bounded number of keys, so a page
    /// may be empty.
    ///
    /// A lock that is held from the first page to the last is on at least one of them, perhaps on
    /// several; one that is taken or released meanwhile may be missing. Only what is certainly a
    /// lock in this client's format is returned.
    ///
    /// Unsupported in the default.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: a part of the store cannot be asked.
    fn list(&self, _pattern: &str, _from: &PagePosition, _by: Moment) -> Result<LockPage, Failure> {
        Err(Failure::NotSent(Error::new(
            ErrorKind::Unsupported,
            "this store, in this wire format, cannot list its locks: name those to look at",
        )))
    }

    /// Called when the client is dropped, perhaps at the end of the process: waits for requests
    /// that are not sent yet and that no caller waits for, at most until this moment of the system
    /// clock. Most stores have none.
    fn leave(&self, until: Moment) {
        let _no_wait = until;
    }
}

/// The callback with the result of a release that no caller waits for: see
/// [`Backend::submit_release`].
pub type OnReleased = Box<dyn FnOnce(Result<Release, Failure>) + Send>;

/// The node of a backend that renews a lock. The engine has one renewal worker for each, and spare
/// ones while a reply is late.
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
