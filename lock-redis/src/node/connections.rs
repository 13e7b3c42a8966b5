//! Which connection a request to a node goes on.

use super::{Node, RequestMode};
use crate::connection::{BorrowedConnection, FramedConnection};
use lock_core::Moment;
use lock_core::backend::Failure;

impl Node {
    /// The connection that all share; a borrowed one where the slot is just moving here.
    pub(super) fn connection(&self, by: Moment) -> Result<FramedConnection<'_>, Failure> {
        match self.mode {
            RequestMode::Direct => self.inner.link.connection(by).map(FramedConnection::shared),
            RequestMode::Asking => self.borrow(by),
        }
    }

    /// A borrowed connection.
    pub(super) fn borrow(&self, by: Moment) -> Result<FramedConnection<'_>, Failure> {
        let connection = FramedConnection::borrowed(self.inner.pool.borrow(by)?);
        Ok(match self.mode {
            RequestMode::Direct => connection,
            RequestMode::Asking => connection.asking(),
        })
    }

    /// The same, behind the releases that no thread waits for: those are on another connection.
    pub(super) fn borrow_behind_releases(
        &self,
        by: Moment,
    ) -> Result<FramedConnection<'_>, Failure> {
        self.inner.link.wait_for_callbacks(by)?;
        self.borrow(by)
    }

    /// The first connection for renewals that no other renewal uses; one of the pool, without
    /// reports, where all are in use.
    pub(super) fn renewal_connection(&self, by: Moment) -> Result<FramedConnection<'_>, Failure> {
        let is_direct = self.mode == RequestMode::Direct;
        let Some(slot) = self.inner.renewals.free_slot().filter(|_| is_direct) else {
            return self.borrow(by);
        };
        let mut connection = BorrowedConnection::new(Box::new(slot), &self.inner.dialer, by)?;
        self.report_changes(&mut connection, by)?;
        let connection = FramedConnection::borrowed(connection);
        Ok(match connection.reports_to() {
            0 => connection,
            _ => connection.tracked(),
        })
    }
}
