//! [`NodeConnection`]: the connection that a request to a node goes on.

use super::{Node, RequestMode};
use crate::connection::{
    AskingConnection, BorrowedConnection, ConnectionLike, MultiplexedConnection, TrackedConnection,
};
use lock_core::Moment;
use lock_core::backend::Failure;
use std::sync::Arc;

/// A connection for one request or several in a row.
pub(super) enum NodeConnection<'a> {
    /// The one that all threads share.
    Shared(Arc<MultiplexedConnection>),
    /// For this caller alone.
    Borrowed(BorrowedConnection<'a>),
    /// The same, for a slot that is just moving to the node.
    Asking(AskingConnection<'a>),
    /// The one for renewals, where changes of what is renewed are reported.
    Tracked(TrackedConnection<'a>),
}

impl NodeConnection<'_> {
    pub(super) fn get(&mut self) -> &mut dyn ConnectionLike {
        match self {
            Self::Shared(connection) => connection,
            Self::Borrowed(connection) => &mut **connection,
            Self::Asking(connection) => connection,
            Self::Tracked(connection) => connection,
        }
    }
}

impl Node {
    /// The connection that all share; a borrowed one where the slot is just moving here.
    pub(super) fn connection(&self, by: Moment) -> Result<NodeConnection<'_>, Failure> {
        match self.mode {
            RequestMode::Direct => self.inner.link.connection(by).map(NodeConnection::Shared),
            RequestMode::Asking => self.borrow(by),
        }
    }

    /// A borrowed connection.
    pub(super) fn borrow(&self, by: Moment) -> Result<NodeConnection<'_>, Failure> {
        let connection = self.inner.pool.borrow(by)?;
        Ok(match self.mode {
            RequestMode::Direct => NodeConnection::Borrowed(connection),
            RequestMode::Asking => NodeConnection::Asking(AskingConnection::new(connection)),
        })
    }

    /// The same, behind the releases that no thread waits for: those are on another connection.
    pub(super) fn borrow_behind_releases(&self, by: Moment) -> Result<NodeConnection<'_>, Failure> {
        self.inner.link.wait_for_callbacks(by)?;
        self.borrow(by)
    }

    /// The first connection for renewals that no other renewal uses; one of the pool, without
    /// reports, where all are in use.
    pub(super) fn renewal_connection(&self, by: Moment) -> Result<NodeConnection<'_>, Failure> {
        let is_direct = self.mode == RequestMode::Direct;
        let Some(slot) = self.inner.renewals.free_slot().filter(|_| is_direct) else {
            return self.borrow(by);
        };
        let mut connection = BorrowedConnection::new(Box::new(slot), &self.inner.dialer, by)?;
        self.report_changes(&mut connection, by)?;
        Ok(match connection.reports_to {
            0 => NodeConnection::Borrowed(connection),
            _ => NodeConnection::Tracked(TrackedConnection::new(connection)),
        })
    }
}
