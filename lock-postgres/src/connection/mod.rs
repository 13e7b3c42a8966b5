//! Connections to a PostgreSQL server: each request has a deadline, and a known outcome if it
//! fails.
//!
//! - `socket`: the deadline of reads and writes, below TLS
//! - `sqlstate`: what the errors of a server mean for a request
//! - `history`: which server has the data of the locks
//! - `dialer`: makes connections to the server that can be written
//! - `pool`: lends them

mod dialer;
mod history;
mod pool;
mod settings;
mod socket;
mod sqlstate;

pub(crate) use dialer::Dialer;
pub(crate) use pool::{ConnectionPool, PoolThread};
pub(crate) use settings::{Form, OPTIONS, Settings};
pub(crate) use socket::Deadline;

use lock_core::backend::{Failure, run_in_background};
use lock_core::{Error, Moment, OpenConnection};
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::{ToSql, Type};
use postgres::{Client, Row};
use socket::Connector;
use std::sync::Arc;
use std::time::Duration;

/// A parameter of a statement, with its type: so that no round trip is needed to ask for it.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The longest wait for the farewell on a connection that is closed, and for what has arrived on an
/// open one, because neither needs a reply.
const FAREWELL: Duration = Duration::from_millis(50);

/// The time to ask the server to end a request, so that a server that is gone keeps no thread.
const CANCELLING: Duration = Duration::from_secs(1);

/// The pause before a statement is repeated that another transaction was in the way of, because
/// that transaction takes about as long.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// The wait for what has arrived already, because the runtime counts in milliseconds.
const READING: Duration = Duration::from_millis(1);

/// A connection, used by one thread at a time. It closes after every failure except an error that
/// the server reported.
pub(crate) struct Connection {
    client: Client,
    deadline: Arc<Deadline>,
    connector: Connector,
    dialer: Arc<Dialer>,
    /// The number of changes of the server before this connection was made.
    generation: u64,
    /// The number of connections that had failed when this one was last used.
    failures: u64,
    /// True after a failure, and if the server takes no writes any more.
    is_broken: bool,
    server: String,
    _counted: OpenConnection,
}

impl Connection {
    /// Sends one statement, and waits for its rows until `by`.
    pub(crate) fn query(
        &mut self,
        statement: &str,
        parameters: &[Parameter<'_>],
        by: Moment,
    ) -> Result<Vec<Row>, Failure> {
        let outcome = loop {
            self.deadline.begin(by);
            match self.client.query_typed(statement, parameters) {
                // The server has undone the statement, because of another transaction.
                Err(error) if sqlstate::is_conflict(&error) && !self.deadline.is_over(PAUSE) => {
                    self.dialer.pause_for(PAUSE);
                }
                outcome => break outcome,
            }
        };
        let outcome = outcome.map_err(|error| self.failed(&error));
        self.failures = self.dialer.failures();
        if self.deadline.is_unconfirmed() {
            let why = format!("{} has ended the wait for a standby", self.server);
            return Err(Failure::Unknown(Error::unavailable(why)));
        }
        // What a server that was left has answered is not what the store contains.
        if self.is_superseded() {
            let why = Error::unavailable(format!("{} was left while it answered", self.server));
            return match outcome {
                Err(Failure::NotSent(_)) => Err(Failure::NotSent(why)),
                _ => Err(Failure::Unknown(why)),
            };
        }
        outcome
    }

    /// Sends statements without parameters, and waits for their end until `by`.
    pub(crate) fn run(&mut self, statements: &str, by: Moment) -> Result<(), Failure> {
        self.deadline.begin(by);
        let outcome = self.client.batch_execute(statements);
        outcome.map_err(|error| self.failed(&error))
    }

    /// Returns the failure of a request, and gives the connection up unless the server has reported
    /// an error after which it is usable: the client of the crate `postgres` stays open.
    fn failed(&mut self, error: &postgres::Error) -> Failure {
        let is_usable = sqlstate::leaves_usable(error);
        if !is_usable && !std::mem::replace(&mut self.is_broken, true) {
            self.dialer.count_failure();
            if self.deadline.has_written() && error.as_db_error().is_none() {
                self.cancel();
            }
        }
        sqlstate::failure(error, &self.server, self.deadline.has_written())
    }

    /// Has the server end a request that is no longer waited for: it may wait there for a row, or
    /// for a standby that is away, with a connection that others need.
    fn cancel(&self) {
        let (token, connector) = (self.client.cancel_token(), self.connector.anew(CANCELLING));
        let cancel = move || {
            let _best_effort = token.cancel_query(connector);
        };
        let _no_thread_no_cancel = run_in_background(cancel);
    }

    /// Waits for a notification until `by`. Returns its channel and payload; `None` if none came,
    /// or if the connection has closed.
    pub(crate) fn next_notification(
        &mut self,
        time: Duration,
        by: Moment,
    ) -> Option<(String, String)> {
        self.deadline.begin(by);
        let next = self.client.notifications().timeout_iter(time).next();
        let next = next.map_err(|error| self.failed(&error)).ok()??;
        Some((next.channel().to_owned(), next.payload().to_owned()))
    }

    /// Reads what has arrived, and returns whether the connection is open. Waits for about a
    /// millisecond: without a wait, the runtime would not read from the system.
    pub(crate) fn check(&mut self) -> bool {
        self.deadline.begin_in(FAREWELL);
        let next = self.client.notifications().timeout_iter(READING).next();
        if let Err(error) = next {
            let _failure = self.failed(&error);
        }
        self.is_open()
    }

    /// Returns false if the connection has failed, or leads to a server that was left.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_broken && !self.is_superseded()
    }

    /// Returns whether the connection can be used. If another one has failed since this one was
    /// used, this one may have failed, too, and is checked.
    pub(crate) fn is_usable(&mut self) -> bool {
        let failures = self.dialer.failures();
        if failures != self.failures && self.is_open() && self.check() {
            self.failures = failures;
        }
        self.is_open()
    }

    fn is_superseded(&self) -> bool {
        self.dialer.generation() != self.generation
    }

    /// Returns the deadline, by which another thread can end a wait on this connection. That closes
    /// the connection.
    pub(crate) fn deadline(&self) -> Arc<Deadline> {
        Arc::clone(&self.deadline)
    }

    /// Returns the server, for messages.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.deadline.begin_in(FAREWELL);
    }
}
