//! [`Abilities`]: the features that a store supports.

#[cfg(doc)]
use super::{Attempt, Backend};
#[cfg(doc)]
use crate::kind::LockKind;
use std::time::Duration;

/// The features that a store supports in its wire format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Abilities {
    /// True if a lease can be renewed. Otherwise locks have fixed leases only.
    pub renewable: bool,
    /// True if grants carry fencing tokens.
    pub tokens: bool,
    /// The way in which a waiter is notified of a release.
    pub waking: Waking,
    /// The time from the grant to the first renewal of a held lock, if that is less than a third of
    /// its lease and no replica must confirm the renewal. From then on the store
    /// [reports](crate::Notices::changed) changes of the lock.
    pub first_renewal: Option<Duration>,
    /// True if the clients that wait for a lock of any kind take turns by a queue in the store, and
    /// a release may [grant](Attempt::direct) a mutex to the next one. Otherwise only the kinds in
    /// the [order of arrival](LockKind::is_queued) queue, and the others compete for a free lock.
    pub queues_waiters: bool,
    /// The way in which replicas can be asked to confirm a grant.
    pub replication: ReplicaSupport,
    /// The longest lease that the store grants. `None`: the store has no limit of its own.
    pub longest_lease: Option<Duration>,
    /// True if the store has all [kinds](LockKind) of locks; false if it has only the mutex.
    pub all_kinds: bool,
}

impl Abilities {
    /// Makes abilities with renewal, tokens and published releases. The store has no replicas and
    /// only mutexes.
    #[must_use]
    pub fn full() -> Self {
        let (waking, replication) = (Waking::Publishes, ReplicaSupport::Never);
        Self {
            renewable: true,
            tokens: true,
            waking,
            first_renewal: None,
            queues_waiters: false,
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

    /// Sets whether clients that wait for a lock of any kind queue in the store.
    #[must_use]
    pub fn queues_waiters(mut self, queues_waiters: bool) -> Self {
        self.queues_waiters = queues_waiters;
        self
    }

    /// Sets whether replicas can be asked to confirm a grant.
    #[must_use]
    pub fn replication(mut self, replication: ReplicaSupport) -> Self {
        self.replication = replication;
        self
    }
}

/// The way in which replicas can be asked to confirm a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReplicaSupport {
    /// The store has no replicas.
    Never,
    /// The store counts confirmations, but does not know how many replicas there should be, so
    /// "all" is refused.
    Counted,
    /// The store knows how many replicas there are.
    Listed,
}

/// The way in which a waiter is notified of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Waking {
    /// The store publishes releases: [`Backend::watch`].
    Publishes,
    /// The waiter queries the store again after `interval`, plus a random part of up to `jitter`.
    Polls {
        /// The time between two attempts.
        interval: Duration,
        /// The largest random addition to the interval.
        jitter: Duration,
    },
}
