//! [`Watch`] and [`Wake`]: how waiters learn of releases.

#[cfg(doc)]
use super::Backend;
#[cfg(doc)]
use crate::name::LockKind;
use crate::owner::OwnerText;
use std::any::Any;
use std::fmt;

/// How a waiter found that a lock is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_enums, reason = "there is no third request of a waiter")]
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
    fn wake_next(&self, _next: &OwnerText) {
        self.wake();
    }
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
