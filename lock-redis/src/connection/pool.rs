//! [`ConnectionPool`]: exclusive connections to borrow, dialled by the borrower.
//!
//! `r2d2` pools slots, not connections: it would dial on its own threads, back off between tries,
//! and report every cause as a time-out. A slot is cold until its borrower dials, within its
//! deadline.

use super::{Connection, Dialer};
use lock_core::backend::{Failure, contain};
use lock_core::{Error, Moment};
use r2d2::{ManageConnection, NopErrorHandler, Pool, PooledConnection};
use scheduled_thread_pool::ScheduledThreadPool;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A place for a connection. Cold while there is none.
#[derive(Default)]
pub(crate) struct PoolSlot {
    connection: Option<Connection>,
    /// How many connections had failed when this one was last looked at.
    failures_seen: u64,
}

impl PoolSlot {
    /// Runs `exchange` on this slot's connection, which is dialled first if there is none that can
    /// be used. A connection that was closed leaves the slot cold.
    pub(crate) fn exchange<T>(
        &mut self,
        dialer: &Dialer,
        by: Moment,
        exchange: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.on_connection(dialer, by, exchange)?
    }

    /// The same; the outer failure is that of getting a connection until `by`.
    pub(crate) fn on_connection<T>(
        &mut self,
        dialer: &Dialer,
        by: Moment,
        exchange: impl FnOnce(&mut Connection) -> T,
    ) -> Result<T, Failure> {
        let failures = dialer.failures();
        if let Some(connection) = &mut self.connection
            && (connection.is_stale() || self.failures_seen != failures)
        {
            connection.check_idle();
        }
        if self.connection.take_if(|connection| !connection.is_open()).is_some() {
            dialer.count_failure();
        }
        self.failures_seen = failures;
        // Taken out while in use: after a panic it is gone, and with it the reply that would be
        // taken for the next borrower's.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => dialer.dial(by)?,
        };
        let outcome = exchange(&mut connection);
        if connection.is_open() {
            self.connection = Some(connection);
        } else {
            dialer.count_failure();
        }
        Ok(outcome)
    }
}

/// Makes slots for `r2d2`.
#[derive(Debug)]
struct SlotManager;

impl ManageConnection for SlotManager {
    type Connection = PoolSlot;
    type Error = Infallible;

    fn connect(&self) -> Result<PoolSlot, Infallible> {
        Ok(PoolSlot::default())
    }

    fn is_valid(&self, _: &mut PoolSlot) -> Result<(), Infallible> {
        Ok(())
    }

    /// A slot never breaks: its connection does, and leaves it cold.
    fn has_broken(&self, _: &mut PoolSlot) -> bool {
        false
    }
}

/// The thread that makes the slots of all pools of a client.
pub(crate) struct PoolThread(Arc<ScheduledThreadPool>);

impl PoolThread {
    /// One thread, instead of three for each pool.
    pub(crate) fn start() -> Result<Self, Error> {
        let threads = || {
            ScheduledThreadPool::builder()
                .num_threads(1)
                .thread_name_pattern("distlock-slots")
                .build()
        };
        // The builder panics where it cannot start a thread.
        let threads = contain(threads).ok_or_else(|| {
            Error::unavailable("could not start the thread of the connection pool")
        })?;
        Ok(Self(Arc::new(threads)))
    }
}

impl fmt::Debug for PoolThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolThread")
    }
}

/// The exclusive connections to one server.
pub(crate) struct ConnectionPool {
    slots: Pool<SlotManager>,
    dialer: Arc<Dialer>,
}

impl ConnectionPool {
    /// The longest wait without a look at the clock.
    const SLICE: Duration = Duration::from_secs(1);

    /// A pool of `size` slots, all cold.
    pub(crate) fn new(size: u32, thread: &PoolThread, dialer: Arc<Dialer>) -> Result<Self, Error> {
        let slots = Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .error_handler(Box::new(NopErrorHandler))
            .thread_pool(Arc::clone(&thread.0))
            .build(SlotManager)
            .map_err(|error| {
                Error::unavailable(format!("cannot set up pool={size}")).with_source(error)
            })?;
        Ok(Self { slots, dialer })
    }

    /// Runs `exchange` on a borrowed connection. Waits for one until `by`.
    pub(crate) fn exchange<T>(
        &self,
        by: Moment,
        exchange: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.on_connection(by, exchange)?
    }

    /// The same; the outer failure is that of getting a connection until `by`.
    pub(crate) fn on_connection<T>(
        &self,
        by: Moment,
        exchange: impl FnOnce(&mut Connection) -> T,
    ) -> Result<T, Failure> {
        self.borrow(by)?.on_connection(&self.dialer, by, exchange)
    }

    /// A slot, warm if possible: the last one given back is the first one handed out.
    fn borrow(&self, by: Moment) -> Result<PooledConnection<SlotManager>, Failure> {
        loop {
            if let Some(slot) = self.slots.try_get() {
                return Ok(slot);
            }
            let left = by.since(self.dialer.clock().now());
            if left.is_zero() {
                return Err(Failure::NotSent(Error::unavailable(format!(
                    "all connections to {} were in use until the deadline: raise `pool={}`",
                    self.dialer.server(),
                    self.slots.max_size()
                ))));
            }
            if let Ok(slot) = self.slots.get_timeout(left.min(Self::SLICE)) {
                return Ok(slot);
            }
        }
    }
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPool")
            .field("server", &format_args!("{}", self.dialer.server()))
            .field("slots", &self.slots.state())
            .finish()
    }
}
