//! [`Watch`] and [`Wake`]: the notification of waiters about releases.

use super::Grant;
#[cfg(doc)]
use super::{Attempt, Backend};
use crate::backend::owner::OwnerText;
use std::any::Any;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

/// The callback for releases. The engine implements it. It must be cheap and never block.
pub trait Wake: Send + Sync {
    /// Called when the lock may have been released.
    fn wake(&self);

    /// Called instead of [`wake`](Self::wake) if the release names the owner that is next in the
    /// lock's queue in the store. The waiters of other owners need not query the store because of
    /// this release.
    fn wake_next(&self, _next: &NextOwner) {
        self.wake();
    }
}

/// The owner that is next in the queue of a lock in the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NextOwner {
    /// The owner, as the store wrote it.
    pub owner: OwnerText,
    /// The grant, if the release granted the lock to this owner.
    pub granted: Option<DirectGrant>,
}

impl NextOwner {
    /// Makes a next owner that has not been granted the lock.
    #[must_use]
    pub fn new(owner: OwnerText) -> Self {
        Self {
            owner,
            granted: None,
        }
    }

    /// Sets the grant of the lock to this owner.
    #[must_use]
    pub fn granted(mut self, grant: DirectGrant) -> Self {
        self.granted = Some(grant);
        self
    }

    /// Adds a condition to the grant, if there is one: see [`DirectGrant::only_while`].
    #[must_use]
    pub fn only_while(mut self, condition: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        self.granted = self.granted.map(|grant| grant.only_while(condition));
        self
    }
}

/// A grant that another owner's release made to an attempt that [allowed](Attempt::direct) it.
///
/// The attempt was the last one of the waiting owner that the store had received. The lease of the
/// grant begins with the release. It is the shorter one of [`Attempt::direct_lease`] and the
/// attempt's own lease. The owner sent the attempt before the release, so it may trust the lock for
/// that time, counted from before the attempt. It may do so even if the message that reports the
/// grant arrives late, or the answer to the attempt was lost. If the message is lost, the answer to
/// the owner's next attempt reports the grant.
#[derive(Clone)]
#[non_exhaustive]
pub struct DirectGrant {
    /// The number of the attempt.
    pub attempt: NonZeroU64,
    /// The grant.
    pub grant: Grant,
    conditions: Vec<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl DirectGrant {
    /// Makes a grant without conditions.
    #[must_use]
    pub fn new(attempt: NonZeroU64, grant: Grant) -> Self {
        Self {
            attempt,
            grant,
            conditions: Vec::new(),
        }
    }

    /// Adds a condition that is checked when the owner takes the grant: whether the server that
    /// made the grant is still the server of the lock. A server may be replaced after it has sent
    /// the message that reports the grant. The condition must never block.
    #[must_use]
    pub fn only_while(mut self, condition: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Returns whether all conditions hold. If not, the owner ignores the grant and sends another
    /// attempt.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.conditions.iter().all(|condition| condition())
    }
}

impl fmt::Debug for DirectGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectGrant")
            .field("attempt", &self.attempt)
            .field("grant", &self.grant)
            .finish_non_exhaustive()
    }
}

/// A subscription to the releases of a lock, made by [`Backend::watch`]. It ends when dropped.
pub struct Watch(#[allow(dead_code, reason = "held for its Drop")] Box<dyn Any + Send + Sync>);

impl Watch {
    /// Makes a watch from a registration whose `Drop` ends it. This `Drop` must not block.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(registration: T) -> Self {
        Self(Box::new(registration))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch(..)")
    }
}
