//! [`Attempt`]: a request to acquire a lock, and its [`Answer`].

#[cfg(doc)]
use super::{Abilities, DirectGrant, RenewalRequest, ReplicaSupport};
use super::{Receipt, WAITER_PRESENCE};
use crate::backend::owner::OwnerId;
use crate::backend::replication::{InsufficientReplicas, Replication};
use crate::backend::token::TokenRange;
use crate::error::Error;
#[cfg(doc)]
use crate::kind::LockKind;
use crate::name::LockName;
use crate::time::lease::LeaseTime;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// One attempt to acquire a lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The owner that will hold the lock. Each wait uses a new owner, and all attempts of the wait
    /// use the same one, unless the store requires a [new owner](Answer::Retry) or the engine has
    /// released an [unconfirmed grant](Answer::Unacknowledged).
    pub owner: OwnerId,
    /// The lease to grant.
    pub lease: LeaseTime,
    /// The fencing tokens to grant with the lock.
    pub tokens: Tokens,
    /// The policy for the replicas that must confirm the grant. Always off if
    /// [`Abilities::replication`] is [`ReplicaSupport::Never`].
    pub replication: Replication,
    /// For a [reader](LockKind::Read) whose thread holds the write lock of the same name, the owner
    /// of this write lock, which does not prevent the grant. Otherwise `None`.
    pub beside: Option<OwnerId>,
    /// True if the caller waits when the lock is busy. Only then may the store make other owners
    /// wait behind this one.
    pub waits: bool,
    /// The time for which a waiting caller counts as present after this attempt.
    pub presence: Duration,
    /// The number of this attempt, if the caller enters the store's queue when the lock is busy.
    /// The release of another owner may then grant a mutex to this attempt: see [`DirectGrant`].
    /// Each number is greater than the earlier numbers of this owner. `None`: only the answer to an
    /// attempt grants the lock.
    pub direct: Option<NonZeroU64>,
    /// The longest lease of a direct grant, which is never longer than `lease`. It is short because
    /// the owner may have died since this attempt.
    pub direct_lease: Duration,
    /// The text of the owner's [label](RenewalRequest::label), for a store that can write it with
    /// the grant at no additional cost. Other stores ignore this text, and get the label with a
    /// renewal.
    pub label: Option<&'a Arc<str>>,
}

impl<'a> Attempt<'a> {
    /// Makes an attempt of a caller that waits. It requests one token, and no replica needs to
    /// confirm its grant.
    #[must_use]
    pub fn new(name: &'a LockName, owner: OwnerId, lease: LeaseTime) -> Self {
        let (tokens, replication) = (Tokens::Assign { reserve: 0 }, Replication::off());
        let (beside, waits, presence, direct, label) = (None, true, WAITER_PRESENCE, None, None);
        Self {
            name,
            owner,
            lease,
            tokens,
            replication,
            beside,
            waits,
            presence,
            direct,
            direct_lease: WAITER_PRESENCE,
            label,
        }
    }

    /// Sets the tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the policy for the replicas that must confirm the grant.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Sets the owner of the write lock that the same thread holds.
    #[must_use]
    pub fn beside(mut self, writer: Option<OwnerId>) -> Self {
        self.beside = writer;
        self
    }

    /// Sets whether the caller waits if the lock is busy.
    #[must_use]
    pub fn waits(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// Sets how long the caller counts as present after this attempt.
    #[must_use]
    pub fn presence(mut self, presence: Duration) -> Self {
        self.presence = presence;
        self
    }

    /// Sets the longest lease of a direct grant.
    #[must_use]
    pub fn direct_lease(mut self, lease: Duration) -> Self {
        self.direct_lease = lease;
        self
    }

    /// Sets the number of the attempt, so that the caller enters the store's queue and another
    /// owner's release may grant the lock to it.
    #[must_use]
    pub fn direct(mut self, number: Option<NonZeroU64>) -> Self {
        self.direct = number;
        self
    }

    /// Sets the text of the owner's label.
    #[must_use]
    pub fn label(mut self, label: Option<&'a Arc<str>>) -> Self {
        self.label = label;
        self
    }
}

/// The fencing tokens to grant with a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tokens {
    /// The grant has no token, and the store need not keep a counter for this lock.
    None,
    /// The store assigns a token that is greater than all earlier tokens of this name, and reserves
    /// the next `reserve` tokens for hand-offs inside the client. It stores the *last* of these
    /// tokens.
    Assign {
        /// The number of tokens that are reserved after the first one.
        reserve: u32,
    },
}

/// The outcome of an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// This owner holds the lock, and as many replicas as requested have confirmed it.
    Granted(Grant),
    /// This owner holds the lock in the store, but too few replicas confirmed it in time.
    Unacknowledged(Grant, InsufficientReplicas),
    /// Another owner holds the lock, or is before this owner in the queue; or a tombstone closes
    /// this owner. The other owner's lease or presence ends after this time unless it is extended
    /// (`None`: unknown).
    Busy(Option<Duration>),
    /// A foreign client holds the lock without a lease, because it sets no expiry or failed before
    /// it set one. A waiter tries again after this time at the latest (`None`: the store publishes
    /// the release).
    BusyWithoutExpiry(Option<Duration>),
    /// Nothing is granted now, for a temporary cause.
    Retry {
        /// The cause.
        cause: RetryCause,
        /// The time after which the cause has ended, unless a holder renews its lease. The cause
        /// may end earlier. `None`: unknown.
        after: Option<Duration>,
        /// True if the attempt was rolled back, because some nodes have granted it or may still
        /// grant it: the retry must use a new owner.
        new_owner: bool,
    },
}

impl Answer {
    /// Returns whether the lock was not granted because other owners hold it or contend for it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            Self::Busy(_)
                | Self::BusyWithoutExpiry(_)
                | Self::Retry {
                    cause: RetryCause::Held | RetryCause::SplitVote,
                    ..
                }
        )
    }
}

/// The reason why an attempt granted nothing and should be [retried](Answer::Retry).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RetryCause {
    /// Another owner holds the lock on too many nodes. This lasts until the owner's lease ends, or
    /// longer if the owner renews the lease.
    Held,
    /// No owner has a majority, because several attempts collided and each was granted by some
    /// nodes. Each client retries after a random pause, so that the attempts do not collide again.
    SplitVote,
    /// The store, or too many of its nodes, grants nothing for a limited time: a store that is new
    /// or may have lost its data waits until every lease that it may have granted is over. The
    /// engine does not treat the pause as an outage: a wait without a deadline, or with a later
    /// one, continues after the pause.
    Paused {
        /// The error for a caller whose wait ends before the pause does.
        why: Error,
        /// True if the pause may end at any time: enough other nodes can grant the lock, but they
        /// did not answer this time.
        may_end_sooner: bool,
    },
    /// Too many nodes could not be reached, or refused the attempt.
    Failed(Error),
}

/// A granted lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The tokens; `None` if no tokens were requested or the store has none for this lock.
    pub tokens: Option<TokenRange>,
    /// Data of the backend: see [`Receipt`].
    pub receipt: Receipt,
    /// The limit that the [semaphore](LockKind::Permits) has in the store; `None` for other kinds.
    pub limit: Option<u32>,
    /// The number of acquired permits, if [all free permits](LockKind::Permits) were requested.
    /// Otherwise it may be `None`.
    pub count: Option<u32>,
}

impl Grant {
    /// Makes a grant with these tokens and an empty receipt.
    #[must_use]
    pub fn new(tokens: Option<TokenRange>) -> Self {
        Self {
            tokens,
            receipt: Receipt::default(),
            limit: None,
            count: None,
        }
    }

    /// Sets the limit that the semaphore has in the store.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets how many permits were acquired.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }

    /// Sets the receipt.
    #[must_use]
    pub fn receipt(mut self, receipt: Receipt) -> Self {
        self.receipt = receipt;
        self
    }
}
