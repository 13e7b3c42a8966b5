//! [`AskingNode`]: a node of a cluster, asked for a slot that is just moving to it.

use super::{Node, on};
use crate::connection::ConnectionLike;
use crate::format::Format;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, LockInfo, Release, ReleaseOptions, Renewal,
    RenewalRequest,
};
use lock_core::{LockName, Moment};

/// How a node is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Plainly,
    /// For a slot of a cluster that is just moving to it.
    Asking,
}

/// A node of a cluster, asked for a slot that is just moving to it. Over connections to borrow: that it is asked for such a
/// slot is said anew before each request, and nothing may come between the two.
#[derive(Debug)]
pub struct AskingNode<'a>(&'a Node);

impl<'a> AskingNode<'a> {
    pub(super) fn of(node: &'a Node) -> Self {
        Self(node)
    }

    /// See [`Backend::acquire`](lock_core::Backend::acquire).
    ///
    /// # Errors
    ///
    /// See [`Failure`]; so with all that follow.
    pub fn acquire(
        &self,
        format: &Format,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let outcome = if attempt.replication.is_off() {
            self.exchange(by, |link| format.0.acquire(link, attempt, by))
        } else {
            self.0.acquire_confirmed(How::Asking, format, attempt, by)
        };
        outcome.map_err(on(attempt.name))
    }

    /// See [`Backend::renew`](lock_core::Backend::renew).
    pub fn renew(
        &self,
        format: &Format,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        self.0.renew_as(How::Asking, format, batch, by)
    }

    /// See [`Backend::release`](lock_core::Backend::release).
    pub fn release(
        &self,
        format: &Format,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let outcome = self.exchange(by, |link| format.0.release(link, acquisition, closing, by));
        self.0.released(format, &acquisition.name, outcome)
    }

    /// See [`Backend::inspect`](lock_core::Backend::inspect).
    pub fn inspect(
        &self,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        self.exchange(by, |link| format.0.inspect(link, name, by)).map_err(on(name))
    }

    /// See [`Backend::force_release`](lock_core::Backend::force_release).
    pub fn force_release(
        &self,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        self.exchange(by, |link| format.0.force(link, name, by)).map_err(on(name))
    }

    fn exchange<T>(
        &self,
        by: Moment,
        exchange: impl FnOnce(&mut dyn ConnectionLike) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.0.aside(How::Asking, by, exchange)
    }
}
