//! The requests about an existing acquisition: [`RenewalRequest`], and [`ReleaseOptions`] for its
//! release.

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

/// Data that a backend returns with a grant and that the engine passes back to the backend with
/// each renewal, verification and release of the acquisition.
#[derive(Clone, Default)]
pub struct Receipt(Option<Arc<dyn Any + Send + Sync>>);

impl Receipt {
    /// Makes a receipt of `value`.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// Returns the value, if the receipt has one of this type.
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

/// The identity of an acquisition for the requests about it: name, owner, lease, and the receipt of
/// its grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquisitionId {
    /// The lock.
    pub name: LockName,
    /// The owner that holds the lock.
    pub owner: OwnerId,
    /// For a renewal, the requested lease; otherwise the longest lease that was requested so far. A
    /// tombstone must exist for at least this long.
    pub lease: LeaseTime,
    /// The receipt of the [`Grant`]; empty for an attempt that was not granted or not answered.
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
    /// The acquisition. Its `lease` is the lease that the store sets, counted from now.
    pub acquisition: AcquisitionId,
    /// The number of replicas that must confirm the renewal.
    pub replication: Replication,
    /// The label that [`Backend::inspect`] shows for this owner while it holds the lock, and for no
    /// other owner. Only some renewals contain a label, so the store keeps it for
    /// [`OwnerLabel::LEASES`] leases. A label is only information for people: a store that cannot
    /// keep it still renews the lock.
    pub label: Option<OwnerLabel>,
}

impl RenewalRequest {
    /// Makes a request that has no label and that no replica needs to confirm.
    #[must_use]
    pub fn new(acquisition: AcquisitionId) -> Self {
        Self {
            acquisition,
            replication: Replication::off(),
            label: None,
        }
    }

    /// Sets how many replicas must confirm the renewal.
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
    /// The store has extended the lease, but too few replicas confirmed it in time. The engine then
    /// decides by the replication policy whether the renewal counts. (If the store itself does not
    /// answer, the renewal fails with [`Failure::Unknown`].)
    Unacknowledged(InsufficientReplicas),
    /// The store has extended the lease on a master without replicas. Most of the servers that must
    /// agree to a promotion confirm that the master has none, so no replica that lacks this renewal
    /// can be promoted, and the renewal counts.
    Unreplicated(InsufficientReplicas),
    /// The store has not extended the lease, because this owner does not hold the lock any more.
    Gone,
}

/// The options of a release: tokens, tombstone, minimum hold, and the place in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReleaseOptions {
    /// The largest token of the reserved range that was used. If the owner still holds the lock,
    /// the store sets its counter back to this token, which returns the unused tokens. `None`
    /// leaves the counter as it is.
    pub last_used: Option<FencingToken>,
    /// Whether the store must refuse attempts of this owner that arrive later.
    pub tombstone: Tombstone,
    /// The minimum hold and the owner to which the lock passes for this time; `None`: the lock
    /// becomes free.
    pub kept: Option<KeptLock>,
    /// True if other threads of this client wait for the lock in the same place of the store's
    /// queue. If the owner only stops waiting, the store then keeps the place for these threads. If
    /// false, the store removes the place.
    pub keeps_place: bool,
}

/// A minimum hold: the lock stays busy after its release until the requested shortest time is over.
/// The release passes the lock to another owner, so that a late renewal or release of the former
/// owner does not affect the minimum hold. No client renews or releases the lock for the other
/// owner. The release also notifies the waiters, because the minimum hold may end earlier than the
/// lease that they know. If the owner of the minimum hold already holds the lock, the release
/// repeats an earlier one whose reply was lost, and must return [`Release::Freed`] as that one did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KeptLock {
    /// The owner to which the lock passes. It is used for this minimum hold only.
    pub owner: OwnerId,
    /// The remaining time of the minimum hold. The store uses it as the lease, which is not
    /// renewed.
    pub time: LeaseTime,
}

impl KeptLock {
    /// Makes the minimum hold that passes the lock to `owner` for `time`.
    #[must_use]
    pub fn new(owner: OwnerId, time: LeaseTime) -> Self {
        Self { owner, time }
    }

    /// Returns the minimum hold for a release that is sent `passed` later; `None` if no time
    /// remains.
    fn after(self, passed: Duration) -> Option<Self> {
        let left = self.time.duration().checked_sub(passed)?;
        LeaseTime::of_rest(left).map(|time| Self { time, ..self })
    }
}

impl ReleaseOptions {
    /// The options for an owner whose requests were all answered.
    pub const WITHOUT_TOMBSTONE: Self = Self {
        last_used: None,
        tombstone: Tombstone::None,
        kept: None,
        keeps_place: false,
    };

    /// The options for an owner with a request that may still arrive.
    pub const WITH_TOMBSTONE: Self = Self {
        last_used: None,
        tombstone: Tombstone::Leave,
        kept: None,
        keeps_place: false,
    };

    /// Sets the largest token that was used.
    #[must_use]
    pub fn last_used(mut self, token: FencingToken) -> Self {
        self.last_used = Some(token);
        self
    }

    /// Returns the options for a repetition of this release that is sent `passed` later: the
    /// minimum hold is shorter by this time.
    #[must_use]
    pub fn after(mut self, passed: Duration) -> Self {
        self.kept = self.kept.and_then(|kept| kept.after(passed));
        self
    }

    /// Sets whether other threads of this client wait in the same place of the store's queue.
    #[must_use]
    pub fn keeps_place(mut self, keeps_place: bool) -> Self {
        self.keeps_place = keeps_place;
        self
    }

    /// Sets the minimum hold, by which the lock passes to another owner instead of becoming free.
    #[must_use]
    pub fn kept(mut self, kept: Option<KeptLock>) -> Self {
        self.kept = kept;
        self
    }
}

/// A mark in the store by which a release closes its owner, because a request of the owner may
/// still arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tombstone {
    /// No mark: all requests of the owner were answered.
    None,
    /// A mark for the length of the lease. While it exists, the store refuses all attempts of the
    /// owner. Used if a request of the owner was not answered, even if the owner does not hold the
    /// lock at the release: the unanswered attempt may arrive later, and would otherwise acquire
    /// the lock for an owner that no client uses any more.
    Leave,
}

/// The outcome of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Release {
    /// This owner held the lock and does not hold it any more. The lock is free, unless it has a
    /// [minimum hold](ReleaseOptions::kept), other owners share it, or the release granted it to
    /// the next owner in the queue.
    Freed,
    /// This owner did not hold the lock, or did not hold it any more.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;

    #[test]
    fn minimum_hold_that_is_nearly_over_is_not_cut_short() {
        let millis = Duration::from_millis;
        let time = LeaseTime::new(millis(500)).unwrap();
        let kept = KeptLock::new(OwnerId::new(ClientId::random(), 1), time);
        let left = |passed| kept.after(passed).map(|kept| kept.time.duration());
        assert_eq!(left(millis(100)), Some(millis(400)));
        assert_eq!(left(millis(498)), Some(LeaseTime::SHORTEST));
        assert_eq!(left(millis(500)), None);
        assert_eq!(left(millis(501)), None);
    }
}
