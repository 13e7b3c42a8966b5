//! [`Member`]: a store as one of a quorum's nodes.

use lock_core::backend::{
    Answer, Attempt, Backend, Failure, LockInfo, NodeId, Renewal, RenewalRequest,
};
use lock_core::{LockName, Moment};
use lock_redis::parts::{self, Standing, Voter};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A store as one of a quorum's nodes.
pub(super) enum Member {
    /// Any backend, called by its number: the same store for as long as it is there, which forgets nothing.
    Plain { store: Arc<dyn Backend>, name: String },
    /// A Redis server, which says at each answer who it is.
    Server(Box<Voter>),
}

/// An answer, and who gave it: where that can be another than before.
#[derive(Clone)]
pub(super) struct Reply<T> {
    pub(super) what: T,
    pub(super) by: Option<Arc<Standing>>,
}

impl<T> Reply<T> {
    fn by_the_store(what: T) -> Self {
        Self { what, by: None }
    }

    fn by(what: T, by: Option<Arc<Standing>>) -> Self {
        Self { what, by }
    }
}

impl Member {
    pub(super) fn store(&self) -> &dyn Backend {
        match self {
            Self::Plain { store, .. } => store.as_ref(),
            Self::Server(voter) => voter.as_ref(),
        }
    }

    /// What it is called in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Plain { name, .. } => name.clone(),
            Self::Server(voter) => voter.name(),
        }
    }

    /// The server, where it is one.
    pub(super) fn voter(&self) -> Option<&Voter> {
        match self {
            Self::Plain { .. } => None,
            Self::Server(voter) => Some(voter),
        }
    }

    /// The longest lease that it grants; `None` if there is no limit.
    pub(super) fn max_lease(&self) -> Option<Duration> {
        self.voter().map(|voter| voter.terms().max_lease)
    }

    pub(super) fn acquire(
        &self,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Reply<Vote>, Failure> {
        match self {
            Self::Plain { store, .. } => {
                store.acquire(attempt, by).map(|answer| Reply::by_the_store(Vote::Cast(answer)))
            }
            Self::Server(voter) => voter.vote(attempt, by).map(|vote| match vote {
                parts::Vote::Answer(answer, node) => Reply::by(Vote::Cast(answer), Some(node)),
                parts::Vote::Paused(left, node) => Reply::by(Vote::Paused(left), Some(node)),
                parts::Vote::Outside => Reply::by(Vote::Outside, None),
            }),
        }
    }

    pub(super) fn renew(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Reply<Renewal>, Failure>> {
        match self {
            Self::Plain { store, .. } => {
                let renewals = store.renew(NodeId::new(0), batch, by).into_iter();
                renewals.map(|renewal| renewal.map(Reply::by_the_store)).collect()
            }
            Self::Server(voter) => {
                let renewals = voter.renew_standing(batch, by).into_iter();
                renewals.map(|it| it.map(|(renewal, node)| Reply::by(renewal, node))).collect()
            }
        }
    }

    /// Frees the lock whoever has it; a server only as a node of this quorum.
    pub(super) fn force_release(
        &self,
        name: &LockName,
        quorum: Option<&str>,
        by: Moment,
    ) -> Result<Reply<bool>, Failure> {
        match self {
            Self::Plain { store, .. } => store.force_release(name, by).map(Reply::by_the_store),
            Self::Server(voter) => voter
                .force_release_standing(name, quorum, by)
                .map(|(freed, node)| Reply::by(freed, node)),
        }
    }

    pub(super) fn inspect(&self, name: &LockName, by: Moment) -> Result<Reply<LockInfo>, Failure> {
        match self {
            Self::Plain { store, .. } => store.inspect(name, by).map(Reply::by_the_store),
            Self::Server(voter) => {
                voter.inspect_standing(name, by).map(|(info, node)| Reply::by(info, node))
            }
        }
    }
}

/// What a node says to an attempt.
pub(super) enum Vote {
    Cast(Answer),
    /// It does not vote for so long.
    Paused(Duration),
    /// It is no node of any quorum.
    Outside,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain { store, .. } => store.fmt(f),
            Self::Server(voter) => voter.fmt(f),
        }
    }
}
