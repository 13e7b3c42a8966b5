//! [`Member`]: a store as one of a quorum's nodes.

use lock_core::Moment;
use lock_core::backend::{Backend, Failure};
use lock_redis::parts::{Terms, Voter};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A store as one of a quorum's nodes. Every [`Backend`] whose abilities say that it is independent can be one; this is for
/// those that can be told apart, and that know when they have lost what they knew.
pub trait Member: Send + Sync + fmt::Debug {
    /// The store.
    fn store(&self) -> &dyn Backend;

    /// What it is called in messages.
    fn name(&self) -> String;

    /// Which store it is, so that one that is given twice is noticed. `None` if it cannot say. May ask it.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if it cannot be one of a quorum.
    fn identity(&self, by: Moment) -> Result<Option<Arc<str>>, Failure> {
        let _ = by;
        Ok(None)
    }

    /// Called for one that [does not vote](lock_core::backend::Answer::NotVoting) because it does not know since when it
    /// should, once the others have confirmed that this is the quorum it belongs to: from now on it waits for as long as
    /// the longest lease, and votes then.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn mark(&self, by: Moment) -> Result<(), Failure> {
        let _ = by;
        Ok(())
    }

    /// The longest lease that it grants; `None` if there is no limit.
    fn max_lease(&self) -> Option<Duration> {
        None
    }
}

/// Any backend, known by its number.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) store: Arc<dyn Backend>,
    pub(super) number: usize,
}

impl Member for Plain {
    fn store(&self) -> &dyn Backend {
        self.store.as_ref()
    }

    fn name(&self) -> String {
        format!("node {}", self.number)
    }
}

/// A Redis server.
#[derive(Debug)]
pub(super) struct RedisMember {
    pub(super) voter: Voter,
    pub(super) terms: Terms,
}

impl Member for RedisMember {
    fn store(&self) -> &dyn Backend {
        &self.voter
    }

    fn name(&self) -> String {
        self.voter.name()
    }

    fn identity(&self, by: Moment) -> Result<Option<Arc<str>>, Failure> {
        self.voter.introduce(by).map(Some)
    }

    fn mark(&self, by: Moment) -> Result<(), Failure> {
        self.voter.mark(self.terms.max_lease, by)
    }

    fn max_lease(&self) -> Option<Duration> {
        Some(self.terms.max_lease)
    }
}
