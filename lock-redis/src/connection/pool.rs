//! [`ConnectionPool`]: exclusive connections to borrow, dialled by the borrower.
//!
//! `r2d2` pools slots, not connections: otherwise it would dial on its own threads, back off
//! between attempts, and report every cause as a time-out. A slot is cold, without a connection,
//! until its borrower dials, with the borrower's deadline.

use super::{Connection, Dialer};
use lock_core::backend::{Failure, contain};
use lock_core::{Error, Moment, SystemClock};
use r2d2::{ManageConnection, NopErrorHandler, Pool};
use scheduled_thread_pool::ScheduledThreadPool;
use std::convert::Infallible;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A place for a connection; cold while there is none.
#[derive(Default)]
pub(crate) struct PoolSlot {
    connection: Option<Connection>,
    /// The number of connections that had failed when this slot's connection was last checked.
    failures_seen: u64,
    /// The client ID of the subscriber's connection to which the server last reported changes of
    /// keys that were read here; zero if there is none.
    reported_to: u64,
    /// True if a connection of the application's pool stays here after its use.
    keeps_lent: bool,
}

impl PoolSlot {
    /// Returns true if a connection is here.
    pub(crate) fn is_warm(&self) -> bool {
        self.connection.is_some()
    }

    /// Keeps a connection of the application's pool here after its use.
    pub(crate) fn keep_lent(&mut self) {
        self.keeps_lent = true;
    }

    /// Closes a connection that was idle for longer than `time`, because an idle connection counts
    /// against the server's limit of clients.
    pub(crate) fn close_if_idle(&mut self, time: Duration) {
        self.connection
            .take_if(|connection| connection.is_idle_for(time));
    }

    /// Returns `true`, once, if the server reported changes of keys that were read here, but no
    /// longer does because the connection is closed. Does not wait.
    pub(crate) fn has_lost_reports(&mut self) -> bool {
        let reports = |connection: &mut Connection| {
            connection.check_idle();
            connection.is_open() && connection.reports_to != 0
        };
        let is_lost = self.reported_to != 0 && !self.connection.as_mut().is_some_and(reports);
        if is_lost {
            self.reported_to = 0;
        }
        is_lost
    }
}

/// The connection of a slot, borrowed by one thread. The drop removes the connection from the slot
/// if it is closed, and after a panic: otherwise the reply to the interrupted request would be read
/// as the reply to the next borrower's request.
pub(crate) struct BorrowedConnection<'a> {
    slot: Box<dyn DerefMut<Target = PoolSlot> + 'a>,
    dialer: &'a Dialer,
}

impl<'a> BorrowedConnection<'a> {
    /// Borrows the connection of this slot, dialled first if there is no usable one.
    pub(crate) fn new(
        mut slot: Box<dyn DerefMut<Target = PoolSlot> + 'a>,
        dialer: &'a Dialer,
        by: Moment,
    ) -> Result<Self, Failure> {
        let failures = dialer.failures();
        let PoolSlot {
            connection,
            failures_seen,
            keeps_lent,
            ..
        } = &mut **slot;
        if let Some(connection) = connection
            && (connection.is_stale() || *failures_seen != failures)
        {
            connection.check_idle();
            // Not on the one kept for renewals: if the server is slow, its place would be lost.
            if !*keeps_lent {
                let _closed_by_failure = connection.check_lent(by);
            }
        }
        if connection
            .take_if(|connection| !connection.is_open())
            .is_some()
        {
            dialer.count_failure();
        }
        *failures_seen = failures;
        if connection.is_none() {
            *connection = Some(dialer.dial(by)?);
        }
        Ok(Self { slot, dialer })
    }
}

impl Deref for BorrowedConnection<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.slot.connection.as_ref().expect(BORROWED)
    }
}

impl DerefMut for BorrowedConnection<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        self.slot.connection.as_mut().expect(BORROWED)
    }
}

impl BorrowedConnection<'_> {
    /// Records that the server reports to this subscriber the changes of keys that are read on this
    /// connection. Returns `true` if an earlier connection of this slot had the same subscriber.
    pub(crate) fn replaces_one_that_reported_to(&mut self, subscriber: u64) -> bool {
        std::mem::replace(&mut self.slot.reported_to, subscriber) == subscriber
    }
}

const BORROWED: &str = "a slot keeps its connection while that is borrowed";

impl Drop for BorrowedConnection<'_> {
    fn drop(&mut self) {
        // Also if the thread was panicking before it borrowed the connection: a second panic,
        // contained in a destructor, cannot be distinguished from the first.
        if thread::panicking() {
            self.slot.connection = None;
        } else if !self.is_open() {
            self.slot.connection = None;
            self.dialer.count_failure();
        } else if self.is_lent() && !self.slot.keeps_lent {
            self.slot.connection = None;
        }
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

    /// A slot never breaks: its connection breaks, and leaves the slot cold.
    fn has_broken(&self, _: &mut PoolSlot) -> bool {
        false
    }
}

/// The thread that makes the slots of all pools of a client.
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
    /// Creates a pool of `size` slots, all cold.
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

    /// Borrows a connection; waits until `by` for a free slot, and for a dial. The slot that was
    /// returned last is borrowed first, so open connections are preferred to cold slots.
    pub(crate) fn borrow(&self, by: Moment) -> Result<BorrowedConnection<'_>, Failure> {
        let slot = loop {
            if let Some(slot) = self.slots.try_get() {
                break slot;
            }
            let left = by.since(self.dialer.clock().now());
            if left.is_zero() {
                return Err(Failure::NotSent(self.exhausted()));
            }
            if let Ok(slot) = self.slots.get_timeout(left.min(SystemClock::SLICE)) {
                break slot;
            }
        };
        BorrowedConnection::new(Box::new(slot), &self.dialer, by)
    }

    fn exhausted(&self) -> Error {
        match self.dialer.lender() {
            Some(pool) => pool.late(None),
            None => Error::unavailable(format!(
                "all connections to {} were in use until the deadline: raise `pool={}`",
                self.dialer.server(),
                self.slots.max_size()
            )),
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
