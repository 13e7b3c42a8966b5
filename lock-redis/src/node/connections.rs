//! The choice of the connection for a request to a node.

use super::{Node, RequestMode};
use crate::connection::{BorrowedConnection, FramedConnection};
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use std::time::Duration;

/// The longest wait of a release for a connection of the application's pool. Short, because the
/// connection for renewals is used after it.
const LENT_WAIT: Duration = Duration::from_millis(500);

impl Node {
    /// Returns the connection that all threads share. For a slot that is being moved to this node,
    /// borrows a connection of the pool, because no request of another thread may come between
    /// `ASKING` and the request for that slot.
    pub(super) fn connection(&self, by: Moment) -> Result<FramedConnection<'_>, Failure> {
        match self.mode {
            RequestMode::Direct => self.inner.link.connection(by).map(FramedConnection::shared),
            RequestMode::Asking | RequestMode::Lent => self.borrow(by),
        }
    }

    /// Borrows a connection of the pool.
    pub(super) fn borrow(&self, by: Moment) -> Result<FramedConnection<'_>, Failure> {
        let connection = FramedConnection::borrowed(self.inner.pool.borrow(by)?);
        Ok(match self.mode {
            RequestMode::Direct | RequestMode::Lent => connection,
            RequestMode::Asking => connection.asking(),
        })
    }

    /// Takes a connection of the application's pool for renewals, unless there is one. Otherwise
    /// held locks would be lost while the application uses all connections.
    pub(super) fn reserve_renewal_connection(&self, by: Moment) -> Result<(), Failure> {
        let renewals = &self.inner.renewals;
        let slot = match renewals.lent_slot(Duration::ZERO) {
            // Another thread renews on it.
            None if renewals.has_lent() => return Ok(()),
            None => renewals.lent_slot(by.since(self.clock().now())),
            free => free,
        };
        match slot {
            // A renewal checks whether it is alive.
            Some(slot) if slot.is_warm() => return Ok(()),
            Some(slot) => drop(BorrowedConnection::new(
                Box::new(slot),
                &self.inner.dialer,
                by,
            )?),
            None => return Err(self.renewals_are_busy()),
        }
        renewals.note_lent();
        Ok(())
    }

    fn renewals_are_busy(&self) -> Failure {
        let server = self.inner.dialer.server();
        let message = format!("the connection to {server} for renewals was in use in vain");
        Failure::NotSent(Error::unavailable(message))
    }

    /// Returns the one connection for renewals that the application's pool lends; another one if it
    /// is in use for long, as while replicas are waited for.
    fn lent_renewal_connection(&self, by: Moment) -> Result<FramedConnection<'_>, Failure> {
        let left = by.since(self.clock().now());
        let Some(slot) = self.inner.renewals.lent_slot(left / 4) else {
            return self.borrow(by);
        };
        let connection = BorrowedConnection::new(Box::new(slot), &self.inner.dialer, by)?;
        Ok(FramedConnection::borrowed(connection))
    }

    /// Returns a connection for a release: the one for renewals if the application uses all others.
    pub(super) fn release_connection(&self, by: Moment) -> Result<FramedConnection<'_>, Failure> {
        if !self.is_lent() {
            return self.connection(by);
        }
        let now = self.clock().now();
        match self.borrow(now + LENT_WAIT.min(by.since(now) / 2)) {
            Err(Failure::NotSent(_)) => self.renewal_connection(by),
            borrowed => borrowed,
        }
    }

    /// Borrows a connection after all releases that no caller waits for have been answered.
    /// Otherwise a request on the borrowed connection could overtake those releases on the shared
    /// one.
    pub(super) fn borrow_behind_releases(
        &self,
        by: Moment,
    ) -> Result<FramedConnection<'_>, Failure> {
        self.inner.link.wait_for_callbacks(by)?;
        self.borrow(by)
    }

    /// Returns the first connection for renewals that is not in use. If all are in use, or requests
    /// need `ASKING`, borrows a connection of the pool, and no key changes are reported.
    pub(super) fn renewal_connection(&self, by: Moment) -> Result<FramedConnection<'_>, Failure> {
        let free = match self.mode {
            RequestMode::Lent => return self.lent_renewal_connection(by),
            RequestMode::Asking => None,
            RequestMode::Direct => self.inner.renewals.free_slot(),
        };
        let Some(slot) = free else {
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
