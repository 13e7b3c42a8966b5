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
    /// True if grants contain fencing tokens.
    pub tokens: bool,
    /// The way in which a waiter is notified of a release.
    pub waking: Waking,
    /// The time from the grant to the first renewal, for a store that
    /// [reports](crate::Notices::changed) changes of a lock from its first renewal on. Used if it
    /// is less than about a third of the lease, the number of renewals is not limited, no replica
    /// must confirm the renewals, and the lock is not [shared](LockKind::is_shared). `None`: the
    /// first renewal is due after about a third of the lease.
    pub first_renewal: Option<Duration>,
    /// True if the store queues the waiters for locks of all kinds, and a release may
    /// [grant](Attempt::direct) a mutex to the next waiter. Otherwise it queues waiters only for
    /// the kinds that are granted in the [order of arrival](LockKind::is_queued); the waiters for
    /// other kinds compete for a free lock.
    pub queues_waiters: bool,
    /// True if [`Backend::submit_release`] waits for the reply. Then another thread removes a
    /// waiter that has given up from the store, so that this does not lengthen the wait.
    pub waits_for_releases: bool,
    /// Whether and how replicas can confirm grants and renewals.
    pub replication: ReplicaSupport,
    /// The longest lease that the store grants. `None`: the store has no limit of its own. The
    /// engine refuses a minimum hold that is longer. The store itself refuses a longer lease.
    pub longest_lease: Option<Duration>,
    /// True if the store has all [kinds](LockKind) of locks; false if it has only the mutex and, if
    /// [`queues_waiters`](Self::queues_waiters) is true, the fair mutex.
    pub all_kinds: bool,
}

impl Abilities {
    /// Makes the abilities of a store that renews leases, grants tokens and publishes releases, and
    /// that has no replicas and only mutexes.
    #[must_use]
    pub fn full() -> Self {
        let (waking, replication) = (Waking::Publishes, ReplicaSupport::Never);
        Self {
            renewable: true,
            tokens: true,
            waking,
            first_renewal: None,
            queues_waiters: false,
            waits_for_releases: false,
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

    /// Sets the time from the grant to the first renewal.
    #[must_use]
    pub fn first_renewal(mut self, after: Option<Duration>) -> Self {
        self.first_renewal = after;
        self
    }

    /// Sets whether the store queues the waiters for locks of all kinds.
    #[must_use]
    pub fn queues_waiters(mut self, queues_waiters: bool) -> Self {
        self.queues_waiters = queues_waiters;
        self
    }

    /// Sets whether [`Backend::submit_release`] waits for the reply.
    #[must_use]
    pub fn waits_for_releases(mut self, waits: bool) -> Self {
        self.waits_for_releases = waits;
        self
    }

    /// Sets whether and how replicas can confirm grants and renewals.
    #[must_use]
    pub fn replication(mut self, replication: ReplicaSupport) -> Self {
        self.replication = replication;
        self
    }
}

/// Whether and how replicas can confirm grants and renewals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReplicaSupport {
    /// The store has no replicas.
    Never,
    /// The store counts confirmations, but does not know how many replicas it should have, so the
    /// policy "all" is refused.
    Counted,
    /// The store knows how many replicas it has, so the policy "all" is possible.
    Listed,
}

/// The way in which a waiter is notified of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Waking {
    /// The store publishes releases, and [`Backend::watch`] receives them.
    Publishes,
    /// The store does not publish releases. The waiter sends another attempt after `interval` plus
    /// a random time of up to `jitter`.
    Polls {
        /// The time between two attempts.
        interval: Duration,
        /// The largest random addition to the interval.
        jitter: Duration,
    },
}
