//! [`ConnectionPool`]: connections to borrow, made by the borrower.
//!
//! `r2d2` pools places for connections, and not connections: otherwise it would connect on its own
//! threads, without the borrower's deadline, and would report each cause as a time-out.

use super::{Connection, Dialer};
use lock_core::backend::{Failure, contain};
use lock_core::{Error, Moment};
use r2d2::{ManageConnection, NopErrorHandler, Pool, PooledConnection};
use scheduled_thread_pool::ScheduledThreadPool;
use std::convert::Infallible;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The longest wait for a place before the pool is asked again, because the deadline is on a clock
/// that `r2d2` does not know.
const SLICE: Duration = Duration::from_millis(100);

/// Makes places without a connection.
#[derive(Debug)]
struct Places;

impl ManageConnection for Places {
    type Connection = Option<Connection>;
    type Error = Infallible;

    fn connect(&self) -> Result<Option<Connection>, Infallible> {
        Ok(None)
    }

    fn is_valid(&self, _: &mut Option<Connection>) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Option<Connection>) -> bool {
        false
    }
}

/// The thread that makes the places of all pools of a client.
pub(crate) struct PoolThread(Arc<ScheduledThreadPool>);

impl PoolThread {
    /// Starts the thread. Otherwise `r2d2` would start three threads for each pool.
    pub(crate) fn start() -> Result<Self, Error> {
        let threads = || {
            ScheduledThreadPool::builder()
                .num_threads(1)
                .thread_name_pattern("distlock-slots")
                .build()
        };
        // The builder panics if it cannot start a thread.
        let threads = contain(threads).ok_or_else(|| {
            Error::unavailable("could not start the thread of the connection pool")
        })?;
        Ok(Self(Arc::new(threads)))
    }
}

/// Connections to borrow, at most a number of them at once.
pub(crate) struct ConnectionPool {
    places: Pool<Places>,
    dialer: Arc<Dialer>,
}

impl ConnectionPool {
    /// Makes a pool of `size` places, all without a connection.
    pub(crate) fn new(size: u32, thread: &PoolThread, dialer: Arc<Dialer>) -> Result<Self, Error> {
        let places = Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(Arc::clone(&thread.0))
            .build(Places)
            .map_err(|error| {
                Error::unavailable(format!("cannot set up pool={size}")).with_source(error)
            })?;
        Ok(Self { places, dialer })
    }

    pub(crate) fn dialer(&self) -> &Arc<Dialer> {
        &self.dialer
    }

    /// Runs a request on a connection, by `by`. If a connection of before proves to be closed
    /// before the request was sent, another one is used.
    pub(crate) fn with<T>(
        &self,
        by: Moment,
        mut request: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            let mut place = Place(self.place(by)?);
            let is_old = place.0.as_mut().is_some_and(Connection::is_usable);
            if !is_old {
                *place.0 = None;
                *place.0 = Some(self.dialer.dial(by)?);
            }
            let Some(connection) = place.0.as_mut() else {
                unreachable!("a connection was just put here");
            };
            match request(connection) {
                Err(Failure::NotSent(_)) if is_old && !connection.is_open() => {}
                outcome => return outcome,
            }
        }
    }

    fn place(&self, by: Moment) -> Result<PooledConnection<Places>, Failure> {
        loop {
            if let Some(place) = self.places.try_get() {
                return Ok(place);
            }
            let left = by.since(self.dialer.clock().now());
            if left.is_zero() {
                let size = self.places.max_size();
                return Err(Failure::NotSent(Error::unavailable(format!(
                    "all connections to the database were in use until the deadline: raise \
                     `pool={size}`"
                ))));
            }
            if let Ok(place) = self.places.get_timeout(left.min(SLICE)) {
                return Ok(place);
            }
        }
    }
}

/// A borrowed place. The drop empties it after a failure, and after a panic: otherwise the rest of
/// an interrupted request would be on the connection.
struct Place(PooledConnection<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        if thread::panicking() || !self.0.as_ref().is_some_and(Connection::is_open) {
            *self.0 = None;
        }
    }
}
