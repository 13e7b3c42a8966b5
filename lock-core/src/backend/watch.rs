//! [`Watch`] and [`Wake`]: how waiters learn of releases.

#[cfg(doc)]
use super::{Attempt, Backend, WAITER_PRESENCE};
use crate::backend::owner::OwnerText;
use crate::backend::token::FencingToken;
#[cfg(doc)]
use crate::kind::LockKind;
use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;

/// How a waiter found that a lock is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_enums,
    reason = "there is no third request of a waiter"
)]
pub enum FoundBusyBy {
    /// An attempt: its answer takes into account whether the holder publishes its release.
    Attempt,
    /// [`Backend::peek`].
    Peek,
}

/// The callback for releases. The engine implements it; it is cheap and never blocks.
pub trait Wake: Send + Sync {
    /// Called when the lock may have been released.
    fn wake(&self);

    /// Called in its place if the release names the owner that is next in the queue of a
    /// [fair lock](LockKind::Fair): the others need not ask before their usual time.
    fn wake_next(&self, _next: &NextOwner) {
        self.wake();
    }
}

/// The owner that is next in the queue of a [fair lock](LockKind::Fair).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NextOwner {
    /// As the store wrote it.
    pub owner: OwnerText,
    /// Whether the release granted it the lock.
    pub granted: Option<DirectGrant>,
}

impl NextOwner {
    /// Makes an owner that is next, and has not been granted the lock.
    #[must_use]
    pub fn new(owner: OwnerText) -> Self {
        Self {
            owner,
            granted: None,
        }
    }

    /// Sets that it was granted the lock.
    #[must_use]
    pub fn granted(mut self, grant: DirectGrant) -> Self {
        self.granted = Some(grant);
        self
    }
}

/// A grant by the release of another owner, to an attempt that [allowed](Attempt::direct) it.
///
/// It was the last that the store had seen of that owner. From the release on the store keeps the
/// lock for [`WAITER_PRESENCE`], so the owner may trust it for as long, counted from before it sent
/// the attempt. That holds however late the message comes, and also if the answer to the attempt
/// was lost. An owner that misses the message finds the lock its own with its next attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs, reason = "all that such a message says")]
pub struct DirectGrant {
    /// The number of the attempt.
    pub attempt: NonZeroU32,
    /// The token.
    pub token: FencingToken,
}

/// A running [`Backend::watch`]; ends when dropped.
pub struct Watch(#[allow(dead_code, reason = "held for its Drop")] Box<dyn Any + Send + Sync>);

impl Watch {
    /// Makes a watch of a registration whose `Drop` ends it. That `Drop` must not block.
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
