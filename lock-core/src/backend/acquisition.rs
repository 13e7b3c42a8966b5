//! What is asked of an acquisition: [`RenewalRequest`], and a release by [`ReleaseOptions`].

#[cfg(doc)]
use super::{Backend, Failure, Grant};
use crate::backend::owner::{OwnerId, OwnerLabel};
use crate::backend::replication::{InsufficientReplicas, Replication};
use crate::backend::token::FencingToken;
use crate::name::LockName;
use crate::time::lease::LeaseTime;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Data of the backend that the engine keeps with an acquisition.
#[derive(Clone, Default)]
pub struct Receipt(Option<Arc<dyn Any + Send + Sync>>);

impl Receipt {
    /// Makes a receipt of `value`.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// Returns the value, if there is one of this type.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Receipt(..)"
        } else {
            "Receipt"
        })
    }
}

/// The identity of an acquisition: name, owner, lease, and the receipt of its grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquisitionId {
    /// The lock.
    pub name: LockName,
    /// The owner that holds it.
    pub owner: OwnerId,
    /// The lease that was last requested. A tombstone must exist for at least this long.
    pub lease: LeaseTime,
    /// The receipt of the [`Grant`]; empty if there was none (an attempt without a reply).
    pub receipt: Receipt,
}

impl AcquisitionId {
    /// Makes the identity of `owner`'s acquisition of `name`.
    #[must_use]
    pub fn new(name: LockName, owner: OwnerId, lease: LeaseTime, receipt: Receipt) -> Self {
        Self {
            name,
            owner,
            lease,
            receipt,
        }
    }
}

/// One acquisition to be renewed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewalRequest {
    /// The acquisition. Its `lease` is the new lease, counted from now.
    pub acquisition: AcquisitionId,
    /// How many replicas must confirm it.
    pub replication: Replication,
    /// What [`Backend::inspect`] shows of this owner while it holds the lock, never of another one.
    /// Only in some renewals, to be kept for [`OwnerLabel::LEASES`] leases. For people: a store
    /// that cannot keep it renews all the same.
    pub label: Option<OwnerLabel>,
}

impl RenewalRequest {
    /// Makes a request that no replica needs to confirm.
    #[must_use]
    pub fn new(acquisition: AcquisitionId) -> Self {
        Self {
            acquisition,
            replication: Replication::off(),
            label: None,
        }
    }

    /// Sets how many replicas must confirm it.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Sets the owner's label.
    #[must_use]
    pub fn label(mut self, label: Option<OwnerLabel>) -> Self {
        self.label = label;
        self
    }
}

/// The outcome of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Renewal {
    /// At least a full lease is left from now, and as many replicas as requested have confirmed it.
    Extended,
    /// The store has answered, and the lease is extended there, but too few replicas confirmed it
    /// in time: the old validity remains. A missing answer is [`Failure::Unknown`].
    Unacknowledged(InsufficientReplicas),
    /// The lease is extended on a server without replicas. Most of the servers that would have to
    /// agree to a promotion say so: no replica without this renewal can be promoted.
    Unreplicated(InsufficientReplicas),
    /// This owner does not hold the lock any more.
    Gone,
}

/// How a release closes its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReleaseOptions {
    /// The largest token that was used of a reserved range: the store's counter is set back to it
    /// if the owner still holds the lock. `None` does not change the counter.
    pub last_used: Option<FencingToken>,
    /// Whether a request of this owner may still arrive.
    pub tombstone: Tombstone,
    /// To whom the lock passes; `None`: it is free.
    pub kept: Option<KeptLock>,
}

/// A lock that is kept after its release, so that it was held for the shortest time that was asked
/// for. A release passes it to an owner that no client is, so that no late renewal or release of
/// the former one finds it, and notifies the waiters, because it may end earlier than the lease
/// that they know. If that owner has it already, the release repeats one whose reply was lost, and
/// answers as that did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KeptLock {
    /// The owner, used for this once.
    pub owner: OwnerId,
    /// What is left of the shortest time. It is not renewed.
    pub time: LeaseTime,
}

impl KeptLock {
    /// Keeps a lock for `owner` and for `time`.
    #[must_use]
    pub fn new(owner: OwnerId, time: LeaseTime) -> Self {
        Self { owner, time }
    }

    /// The same for a release that is sent so much later; `None` if nothing is left.
    fn after(self, passed: Duration) -> Option<Self> {
        let left = self.time.duration().checked_sub(passed)?;
        LeaseTime::new(left).ok().map(|time| Self { time, ..self })
    }
}

impl ReleaseOptions {
    /// For an owner whose requests were all answered.
    pub const WITHOUT_TOMBSTONE: Self = Self {
        last_used: None,
        tombstone: Tombstone::None,
        kept: None,
    };

    /// For an owner with a request that may still arrive.
    pub const WITH_TOMBSTONE: Self = Self {
        last_used: None,
        tombstone: Tombstone::Leave,
        kept: None,
    };

    /// Sets the last token that was used.
    #[must_use]
    pub fn last_used(mut self, token: FencingToken) -> Self {
        self.last_used = Some(token);
        self
    }

    /// Returns the options of a release that is sent so much later.
    #[must_use]
    pub fn after(mut self, passed: Duration) -> Self {
        self.kept = self.kept.and_then(|kept| kept.after(passed));
        self
    }

    /// Keeps the lock instead of freeing it.
    #[must_use]
    pub fn kept(mut self, kept: Option<KeptLock>) -> Self {
        self.kept = kept;
        self
    }
}

/// Whether a request of an owner may still arrive after its release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tombstone {
    /// All were answered.
    None,
    /// One was not answered: leave a mark for a lease, so that the store refuses later requests of
    /// this owner. Also if the owner holds nothing now: the late request may have been granted and
    /// have ended, or may not have arrived yet.
    Leave,
}

/// The outcome of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Release {
    /// This owner held the lock, which is free now, or [kept](ReleaseOptions::kept).
    Freed,
    /// Like `Freed`, from a store that counts the clients it notified, this one included if it
    /// watches. The engine derives from it for how long a client leaves a free lock to the others.
    FreedFor(u32),
    /// This owner did not hold the lock (any more).
    Gone,
}
