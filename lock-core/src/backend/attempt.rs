//! [`Attempt`]: a request to take a lock, and its [`Answer`].

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
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// One attempt to take a lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The owner that will hold it. New for every wait, the same for every repetition within it.
    pub owner: OwnerId,
    /// The lease to grant.
    pub lease: LeaseTime,
    /// The fencing tokens to grant with it.
    pub tokens: Tokens,
    /// How many replicas must confirm it. Always off if [`Abilities::replication`] is
    /// [`ReplicaSupport::Never`].
    pub replication: Replication,
    /// The owner of a write lock of the same name, held by the same thread, beside which a
    /// [reader](LockKind::Read) is granted. `None` for other kinds.
    pub beside: Option<OwnerId>,
    /// Whether the caller waits if the lock is busy. A store that keeps others out for its waiters
    /// does so only then.
    pub waits: bool,
    /// For how long a caller that waits counts as waiting from this attempt on, where the store
    /// keeps the [order of arrival](LockKind::is_queued). The same in all attempts of a client.
    pub presence: Duration,
    /// The number of this attempt within its wait, greater than those before, if the release of
    /// another owner may grant it a [fair lock](LockKind::Fair): a [`DirectGrant`]. `None`: only an
    /// attempt may be granted.
    pub direct: Option<NonZeroU32>,
    /// The text of the owner's [label](RenewalRequest::label), for a store that can keep it with
    /// the grant at no cost. Other stores ignore it.
    pub label: Option<&'a Arc<str>>,
}

impl<'a> Attempt<'a> {
    /// Makes an attempt with one token, which no replica needs to confirm.
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
            label,
        }
    }

    /// Sets the tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets how many replicas must confirm it.
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

    /// Sets the number by which the release of another owner may grant it.
    #[must_use]
    pub fn direct(mut self, number: Option<NonZeroU32>) -> Self {
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
    /// The store assigns a token greater than all before it for this name, and reserves `reserve`
    /// more behind it for hand-offs inside the client. It stores the *end* of that range.
    Assign {
        /// How many tokens beyond the first.
        reserve: u32,
    },
}

/// The outcome of an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// This owner has the lock, and as many replicas as requested have confirmed it.
    Granted(Grant),
    /// This owner has the lock in the store, but too few replicas confirmed it in time.
    Unacknowledged(Grant, InsufficientReplicas),
    /// Another owner has it; its lease ends after this time unless it is renewed (`None`: unknown).
    Busy(Option<Duration>),
    /// Another owner has it without a lease: a foreign client's lock without an expiry, or one
    /// whose expiry was never set. A waiter asks again after this time (`None`: the store publishes
    /// the release).
    BusyWithoutExpiry(Option<Duration>),
    /// Nothing is granted now, for a cause that ends.
    Retry {
        /// Why.
        cause: RetryCause,
        /// How long the cause lasts, unless it ends sooner; `None`: unknown.
        after: Option<Duration>,
        /// Whether some nodes may have granted the attempt, which was rolled back, or may still do
        /// so: retry with a new owner.
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

/// Why an attempt granted nothing, and is to be [retried](Answer::Retry).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RetryCause {
    /// Another owner holds too many nodes, for the rest of its lease unless it is renewed.
    Held,
    /// No owner has a majority: several attempts collided, and each got some nodes. Each contender
    /// retries after a random pause, so that they do not collide again.
    SplitVote,
    /// The store, or too many nodes of it, grants nothing until a known time, because it is new or
    /// may have lost its data: until every lease that it may have granted before is over. It is no
    /// outage: a wait that is long enough continues after it.
    Paused {
        /// The error for a caller whose wait ends before the pause.
        why: Error,
        /// Whether it may end at any time: enough other nodes can grant the lock, but did not
        /// answer this time.
        may_end_sooner: bool,
    },
    /// Too many nodes could not be asked, or refused.
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
    /// How many permits the [semaphore](LockKind::Permits) has in the store; `None` for other
    /// kinds.
    pub limit: Option<u32>,
    /// How many permits these are, if [all that were free](LockKind::Permits) were asked for.
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

    /// Sets how many permits were taken.
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
