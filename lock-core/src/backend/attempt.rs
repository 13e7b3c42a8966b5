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
    /// The owner that will hold the lock: a new one for every wait, equal in all attempts of the
    /// wait unless the store requires a [new owner](Answer::Retry).
    pub owner: OwnerId,
    /// The lease to grant.
    pub lease: LeaseTime,
    /// The fencing tokens to grant with the lock.
    pub tokens: Tokens,
    /// The number of replicas that must confirm the grant. Always off if [`Abilities::replication`]
    /// is [`ReplicaSupport::Never`].
    pub replication: Replication,
    /// The owner of the write lock of this name that the same thread holds. In spite of this write
    /// lock a [reader](LockKind::Read) is granted. `None` for other kinds.
    pub beside: Option<OwnerId>,
    /// True if the caller waits when the lock is busy. Only then may the store keep other owners
    /// out in favour of this one.
    pub waits: bool,
    /// The time for which a waiting caller counts as present after this attempt. Equal in all
    /// attempts of a client.
    pub presence: Duration,
    /// The number of this attempt, if the caller waits in the store's queue and the release of
    /// another owner may grant the lock to it: see [`DirectGrant`]. Each number is greater than the
    /// earlier ones of this owner. `None`: only the answer to an attempt grants the lock.
    pub direct: Option<NonZeroU64>,
    /// The lease of a direct grant, if it is not longer than `lease`. Short, because the owner may
    /// have died since this attempt.
    pub direct_lease: Duration,
    /// The text of the owner's [label](RenewalRequest::label), for a store that can keep it with
    /// the grant at no cost. Other stores ignore it.
    pub label: Option<&'a Arc<str>>,
}

impl<'a> Attempt<'a> {
    /// Makes an attempt with one token. No replica needs to confirm its grant.
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

    /// Sets how many replicas must confirm the grant.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Sets the owner of the thread's write lock.
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

    /// Sets for how long the caller counts as waiting.
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

    /// Sets the attempt's number, by which the release of another owner may grant the lock.
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
    /// None: the store keeps no counter for this lock.
    None,
    /// The store assigns a token that is greater than all earlier ones of this name, and reserves
    /// the next `reserve` tokens for hand-offs inside the client. It stores the *end* of that
    /// range.
    Assign {
        /// The number of reserved tokens after the first.
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
    /// Another owner holds the lock. Its lease ends after this time unless it is renewed (`None`:
    /// unknown).
    Busy(Option<Duration>),
    /// Another owner holds the lock without a lease: a foreign client that sets no expiry, or that
    /// failed before it set one. A waiter tries again after this time (`None`: the store publishes
    /// the release).
    BusyWithoutExpiry(Option<Duration>),
    /// Nothing is granted now, for a cause that is temporary.
    Retry {
        /// The cause.
        cause: RetryCause,
        /// The longest duration of the cause; it may end earlier. `None`: unknown.
        after: Option<Duration>,
        /// True if the attempt was rolled back because some nodes may have granted it, or may still
        /// do so: retry with a new owner.
        new_owner: bool,
    },
}

impl Answer {
    /// Returns whether other owners hold the lock, or contend for it.
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
    /// Another owner holds too many nodes, until its lease ends; a renewal extends this time.
    Held,
    /// No owner has a majority: several attempts collided, and each was granted by some nodes. Each
    /// client retries after a random pause, so that the attempts do not collide again.
    SplitVote,
    /// The store, or too many of its nodes, grants nothing until a known time. It is new or may
    /// have lost its data, and waits until every lease that it may have granted is over. The pause
    /// is not an outage: a wait with a later deadline continues after the pause.
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
    /// The tokens; `None` if none were requested.
    pub tokens: Option<TokenRange>,
    /// Data of the backend that the engine returns when this acquisition is renewed and released.
    pub receipt: Receipt,
    /// The number of permits that the [semaphore](LockKind::Permits) has in the store; `None` for
    /// other kinds.
    pub limit: Option<u32>,
    /// The number of acquired permits, if [all free permits](LockKind::Permits) were requested.
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

    /// Sets how many permits the semaphore has in the store.
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
