//! [`ConnectionPool`]: connections to borrow, one thread to a connection.
//!
//! `r2d2` hands out *slots*, and knows nothing of connections: left to itself it would dial on threads of its own, wait
//! longer and longer between tries, and turn every cause into the text "timed out". A slot is cold until its borrower
//! dials, within the borrower's own deadline, and hears at once that the connection was refused or the password wrong.

use crate::connection::{Connection, Dialer};
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use r2d2::{ManageConnection, NopErrorHandler, Pool, PooledConnection};
use scheduled_thread_pool::ScheduledThreadPool;
use std::convert::Infallible;
use std::fmt;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;

/// A place for a connection. Cold while there is none.
#[derive(Default)]
pub(crate) struct PoolSlot {
    connection: Option<Connection>,
    /// How many connections had died when this one was last looked at.
    failures_seen: u64,
}

impl PoolSlot {
    /// Runs `exchange` on this slot's connection, dialling first if there is none that can be used. A connection that the exchange
    /// killed leaves the slot cold.
    pub(crate) fn exchange<T>(
        &mut self,
        dialer: &Dialer,
        by: Moment,
        exchange: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.on_connection(dialer, by, exchange)?
    }

    /// The same; an outer failure says that there was no connection to be had, until `by`.
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
        if self.connection.take_if(|connection| !connection.is_alive()).is_some() {
            dialer.count_failure();
        }
        self.failures_seen = failures;
        // Taken out for as long as it is in use: should the exchange panic, it is gone, and with it the answer that
        // would have been taken for the next borrower's.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => dialer.dial(by)?,
        };
        let outcome = exchange(&mut connection);
        if connection.is_alive() {
            self.connection = Some(connection);
        } else {
            dialer.count_failure();
        }
        Ok(outcome)
    }
}

/// What `r2d2` makes: slots.
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

    /// A slot never breaks: its connection does, and then it is cold.
    fn has_broken(&self, _: &mut PoolSlot) -> bool {
        false
    }
}

/// The thread that makes the slots of all pools of a client, and then sleeps for as long as there are any.
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
        // It panics where it cannot start a thread.
        let threads = catch_unwind(threads).map_err(|_panic| {
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

/// The connections of one server.
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

    /// The same; an outer failure says that there was no connection to be had, until `by`.
    pub(crate) fn on_connection<T>(
        &self,
        by: Moment,
        exchange: impl FnOnce(&mut Connection) -> T,
    ) -> Result<T, Failure> {
        self.borrow(by)?.on_connection(&self.dialer, by, exchange)
    }

    /// A slot; a warm one if there is any, because the last one given back is the first one handed out.
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
