//! [`NodeRequest`]: a node of a cluster, and whether `ASKING` goes before each request.

use super::{Node, on};
use crate::connection::ConnectionLike;
use crate::format::Format;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, LockInfo, Release, ReleaseOptions, Renewal,
    RenewalRequest,
};
use lock_core::{LockName, Moment};
use std::sync::Arc;

/// How a node is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_enums, reason = "made by the crate of the same house")]
pub enum RequestMode {
    /// As the owner of the slot.
    Direct,
    /// With `ASKING` before each request: the slot is being imported.
    Asking,
}

/// A node of a cluster and the mode of its requests. With `ASKING` they use a borrowed connection,
/// because no other request may come between the two.
#[derive(Debug)]
pub struct NodeRequest<'a> {
    node: &'a Arc<Node>,
    mode: RequestMode,
}

impl<'a> NodeRequest<'a> {
    /// Requests to this node.
    #[must_use]
    pub fn new(node: &'a Arc<Node>, mode: RequestMode) -> Self {
        Self { node, mode }
    }

    /// The node, if it owns the slot.
    #[must_use]
    pub fn owner(&self) -> Option<&'a Arc<Node>> {
        (self.mode == RequestMode::Direct).then_some(self.node)
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
        if let Some(owner) = self.owner() {
            return owner.acquire(format, attempt, by);
        }
        let outcome = if attempt.replication.is_off() {
            self.exchange(by, |link| format.0.acquire(link, attempt, by))
        } else {
            self.node.acquire_confirmed(self.mode, format, attempt, by)
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
        self.node.renew_as(self.mode, format, batch, by)
    }

    /// See [`Backend::release`](lock_core::Backend::release).
    pub fn release(
        &self,
        format: &Format,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        if let Some(owner) = self.owner() {
            return owner.release(format, acquisition, closing, by);
        }
        let outcome = self.exchange(by, |link| format.0.release(link, acquisition, closing, by));
        self.node.released(format, &acquisition.name, outcome)
    }

    /// See [`Backend::inspect`](lock_core::Backend::inspect).
    pub fn inspect(
        &self,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        match self.owner() {
            Some(owner) => owner.inspect(format, name, by),
            None => self.exchange(by, |link| format.0.inspect(link, name, by)).map_err(on(name)),
        }
    }

    /// See [`Backend::force_release`](lock_core::Backend::force_release).
    pub fn force_release(
        &self,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        match self.owner() {
            Some(owner) => owner.force_release(format, name, by),
            None => self.exchange(by, |link| format.0.force(link, name, by)).map_err(on(name)),
        }
    }

    fn exchange<T>(
        &self,
        by: Moment,
        exchange: impl FnOnce(&mut dyn ConnectionLike) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.node.aside(RequestMode::Asking, by, exchange)
    }
}
