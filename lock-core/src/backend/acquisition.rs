//! The requests on an existing acquisition: [`RenewalRequest`], and a release by
//! [`ReleaseOptions`].

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
    /// The number of replicas that must confirm the renewal.
    pub replication: Replication,
    /// The label that [`Backend::inspect`] shows for this owner while it holds the lock, and for no
    /// other owner. Only some renewals carry it; the store keeps it for [`OwnerLabel::LEASES`]
    /// leases. It is information for people, so a store that cannot keep a label still renews the
    /// lock.
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
    /// The store has extended the lease, but too few replicas confirmed it in time: the old
    /// validity remains. A missing answer is [`Failure::Unknown`].
    Unacknowledged(InsufficientReplicas),
    /// The lease is extended on a server without replicas. Most of the servers that must agree to a
    /// promotion confirm that there is none, so no replica without this renewal can be promoted.
    Unreplicated(InsufficientReplicas),
    /// This owner does not hold the lock any more.
    Gone,
}

/// The way in which a release closes its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReleaseOptions {
    /// The largest used token of a reserved range. The store sets its counter back to this token if
    /// the owner still holds the lock. `None` does not change the counter.
    pub last_used: Option<FencingToken>,
    /// The mark for an owner of which a request may still arrive.
    pub tombstone: Tombstone,
    /// The owner to which the lock passes; `None`: the lock becomes free.
    pub kept: Option<KeptLock>,
    /// True if another owner of this client waits in the place of this one, so that an owner that
    /// does not hold the lock leaves its place in the store's queue to that one.
    pub keeps_place: bool,
}

/// A minimum hold: the lock stays busy after its release until the requested shortest time is over.
/// The release passes the lock to an owner that belongs to no client, so no late renewal or release
/// of the former owner finds it. The release also notifies the waiters, because the minimum hold
/// may end earlier than the lease that they know. If that owner holds the lock already, the release
/// repeats an earlier one whose reply was lost, and must return the same answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KeptLock {
    /// The owner, used for this minimum hold only.
    pub owner: OwnerId,
    /// The remaining part of the shortest time. It is not renewed.
    pub time: LeaseTime,
}

impl KeptLock {
    /// Keeps a lock for `owner` and for `time`.
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

    /// Sets the last token that was used.
    #[must_use]
    pub fn last_used(mut self, token: FencingToken) -> Self {
        self.last_used = Some(token);
        self
    }

    /// Returns the options for the same release, sent `passed` later.
    #[must_use]
    pub fn after(mut self, passed: Duration) -> Self {
        self.kept = self.kept.and_then(|kept| kept.after(passed));
        self
    }

    /// Sets whether another owner of this client waits in the place of this one.
    #[must_use]
    pub fn keeps_place(mut self, keeps_place: bool) -> Self {
        self.keeps_place = keeps_place;
        self
    }

    /// Sets the minimum hold: the lock passes to another owner and does not become free.
    #[must_use]
    pub fn kept(mut self, kept: Option<KeptLock>) -> Self {
        self.kept = kept;
        self
    }
}

/// The mark that a release leaves if a request of its owner may still arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tombstone {
    /// No mark: all requests of the owner were answered.
    None,
    /// A mark for the length of a lease, because a request of this owner was not answered: the
    /// store refuses later requests of the owner. The mark is needed even if the owner holds
    /// nothing now: the late request may have been granted and its lease be over, or it may not
    /// have arrived yet.
    Leave,
}

/// The outcome of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Release {
    /// This owner held the lock. It is free now, or [held for its minimum
    /// time](ReleaseOptions::kept).
    Freed,
    /// This owner did not hold the lock (any more).
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
