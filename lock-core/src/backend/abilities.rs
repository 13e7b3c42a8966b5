//! [`Abilities`]: what a store supports.

#[cfg(doc)]
use super::{Backend, Release};
#[cfg(doc)]
use crate::kind::LockKind;
use std::time::Duration;

/// What a store supports in its wire format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Abilities {
    /// Whether a lease can be renewed. If not, locks have fixed leases only.
    pub renewable: bool,
    /// Whether grants carry fencing tokens.
    pub tokens: bool,
    /// How a waiter is notified of a release.
    pub waking: Waking,
    /// When a held lock is renewed first, if that is before a third of its lease and no replicas
    /// must confirm it: from then on the store [reports](crate::Notices::changed) changes of it.
    pub first_renewal: Option<Duration>,
    /// Whether [`Release::FreedFor`] counts all clients that wait. A server counts only its own
    /// subscribers.
    pub counts_waiters: bool,
    /// Whether replicas can be asked to confirm a grant.
    pub replication: ReplicaSupport,
    /// The longest lease that it grants. `None`: no limit of its own.
    pub longest_lease: Option<Duration>,
    /// Whether it has all [kinds](LockKind) of locks, and not only the mutex.
    pub all_kinds: bool,
}

impl Abilities {
    /// Makes abilities with renewal, tokens and published releases; without replicas, and
    /// for mutexes only.
    #[must_use]
    pub fn full() -> Self {
        let (waking, replication) = (Waking::Publishes, ReplicaSupport::Never);
        Self {
            renewable: true,
            tokens: true,
            waking,
            first_renewal: None,
            counts_waiters: false,
            longest_lease: None,
            replication,
            all_kinds: false,
        }
    }

    /// Sets whether the store has all kinds of locks.
    #[must_use]
    pub fn all_kinds(mut self, all_kinds: bool) -> Self {
        self.all_kinds = all_kinds;
        self
    }

    /// Sets the longest lease.
    #[must_use]
    pub fn longest_lease(mut self, longest: Option<Duration>) -> Self {
        self.longest_lease = longest;
        self
    }

    /// Sets whether leases can be renewed.
    #[must_use]
    pub fn renewable(mut self, renewable: bool) -> Self {
        self.renewable = renewable;
        self
    }

    /// Sets whether grants carry fencing tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: bool) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets how a waiter is notified of a release.
    #[must_use]
    pub fn waking(mut self, waking: Waking) -> Self {
        self.waking = waking;
        self
    }

    /// Sets when a held lock is renewed first.
    #[must_use]
    pub fn first_renewal(mut self, after: Option<Duration>) -> Self {
        self.first_renewal = after;
        self
    }

    /// Sets whether releases count all clients that wait.
    #[must_use]
    pub fn counts_waiters(mut self, counts_waiters: bool) -> Self {
        self.counts_waiters = counts_waiters;
        self
    }

    /// Sets whether replicas can be asked to confirm a grant.
    #[must_use]
    pub fn replication(mut self, replication: ReplicaSupport) -> Self {
        self.replication = replication;
        self
    }
}

/// Whether replicas can be asked to confirm a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReplicaSupport {
    /// The store has no replicas.
    Never,
    /// The store counts confirmations, but does not know how many replicas there should be, so
    /// "all" is refused.
    Counted,
    /// The store knows how many there are.
    Listed,
}

/// How a waiter is notified of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Waking {
    /// The store publishes releases: [`Backend::watch`].
    Publishes,
    /// The waiter asks again after `interval`, plus a random part of up to `jitter`.
    Polls {
        /// The time between two attempts.
        interval: Duration,
        /// The largest random addition to it.
        jitter: Duration,
    },
}
