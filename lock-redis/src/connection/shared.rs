//! [`SharedConnection`]: one connection to a server for all threads, made anew when it has died.

use super::multiplexed::{MultiplexedConnection, ReplyPoller};
use super::{CallError, CallbackRequest, ConnectionLike, Dialer, Request, Server};
use crate::reply::Reply;
use crate::single_flight::{Flight, FlightLeader, FlightResult, SingleFlight};
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use parking_lot::Mutex;
use std::cell::Cell;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

/// A link that is never borrowed: everybody asks on it at once.
pub(crate) struct SharedConnection {
    dialer: Arc<Dialer>,
    current: Mutex<Option<Arc<MultiplexedConnection>>>,
    /// Who needs a new one.
    dialing: SingleFlight,
    reply_poller: ReplyPoller,
}

thread_local! {
    /// Where requests are with_encoded. Taken out while it is in use.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Encodes `request` into the thread's own buffer for as long as `work` takes.
fn with_encoded<T>(request: &Request<'_>, work: impl FnOnce(&[u8]) -> T) -> T {
    let mut bytes = SCRATCH.try_with(Cell::take).unwrap_or_default();
    bytes.clear();
    request.encode(&mut bytes);
    let outcome = work(&bytes);
    let _ending = SCRATCH.try_with(|kept| kept.set(bytes));
    outcome
}

impl SharedConnection {
    pub(crate) fn new(dialer: Arc<Dialer>) -> Self {
        let reply_poller = ReplyPoller::new(Arc::clone(dialer.clock()));
        Self { dialer, current: Mutex::default(), dialing: SingleFlight::default(), reply_poller }
    }

    /// The server at the other end.
    pub(crate) fn server(&self) -> &Arc<Server> {
        self.dialer.server()
    }

    /// Runs `exchange` on the connection, dialling first if there is none that can be used.
    pub(crate) fn exchange<T>(
        &self,
        by: Moment,
        exchange: impl FnOnce(&mut ConnectionHandle) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let connection = self.connection(by)?;
        exchange(&mut ConnectionHandle { connection, server: Arc::clone(self.dialer.server()) })
    }

    /// Sends a script, by its text the first time on a connection and by its hash from then on, and returns when it has
    /// left: nobody waits here to be told that the server does not know the hash. What came of it is told to the callback: at once if it could not be
    /// sent, and otherwise by whoever reads next, or by a thread that looks after what nobody reads, at the deadline at
    /// the latest.
    pub(crate) fn submit(
        &self,
        script: u32,
        by_text: &Request<'_>,
        by_hash: &Request<'_>,
        by: Moment,
        mut callback: CallbackRequest,
    ) {
        let failed = match self.connection(by) {
            Ok(connection) => {
                let sent = if connection.is_first_use(script) {
                    with_encoded(by_text, |bytes| connection.submit(bytes, by, callback))
                } else {
                    with_encoded(by_hash, |bytes| {
                        callback.by_hash.extend_from_slice(bytes);
                        connection.submit(bytes, by, callback)
                    })
                };
                match sent {
                    Ok(()) => return self.reply_poller.look_after(&connection),
                    Err((callback, error)) => (callback, Failure::from(error)),
                }
            }
            Err(failure) => (callback, failure),
        };
        let (callback, failure) = failed;
        let _heard = (callback.done)(Err(failure));
    }

    /// Sends a request that runs no script, and returns when it has left; the rest as with [`submit`](Self::submit).
    pub(crate) fn submit_command(
        &self,
        request: &Request<'_>,
        by: Moment,
        callback: CallbackRequest,
    ) {
        let failed = match self.connection(by) {
            Ok(connection) => {
                match with_encoded(request, |bytes| connection.submit(bytes, by, callback)) {
                    Ok(()) => return self.reply_poller.look_after(&connection),
                    Err((callback, error)) => (callback, Failure::from(error)),
                }
            }
            Err(failure) => (callback, failure),
        };
        let (callback, failure) = failed;
        let _heard = (callback.done)(Err(failure));
    }

    /// Returns when no release is under way here whose answer nobody waits for: what is asked on another connection from then
    /// on overtakes none.
    pub(crate) fn wait_for_callbacks(&self, by: Moment) -> Result<(), Failure> {
        const PING: Request<'static> = Request(&[&[b"PING"]]);
        loop {
            let current = self.current.lock().clone();
            let Some(connection) = current.filter(|connection| connection.has_callbacks()) else {
                return Ok(());
            };
            // Answers come in the order of their requests: behind this one those of later releases may be under way. A
            // connection that ends has told its callbacks.
            match with_encoded(&PING, |bytes| connection.call(bytes, by)) {
                Ok(_) => return Ok(()),
                Err(CallError::NotSent(error) | CallError::Unknown(error))
                    if self.dialer.clock().now() >= by =>
                {
                    return Err(Failure::NotSent(error));
                }
                Err(_) => {}
            }
        }
    }

    /// A connection that can be used. One dials, the others wait for it; each within its own deadline.
    fn connection(&self, by: Moment) -> Result<Arc<MultiplexedConnection>, Failure> {
        loop {
            let now = self.dialer.clock().now();
            if now >= by {
                let late =
                    self.dialer.server().io_error("take a request", ErrorKind::TimedOut.into());
                return Err(Failure::NotSent(late));
            }
            if let Some(connection) = self.usable(now) {
                return Ok(connection);
            }
            match self.dialing.join(&**self.dialer.clock(), by) {
                Flight::Lead(leader) => {
                    // The one before may have made it between our look and our turn.
                    return self.usable(now).map_or_else(|| self.dial(by, leader), Ok);
                }
                Flight::Finished(FlightResult::Retry) => {}
                Flight::Finished(FlightResult::Failed(failure)) => return Err(failure),
                Flight::TimedOut => {
                    let late = self.dialer.cannot_connect(ErrorKind::TimedOut.into());
                    return Err(Failure::NotSent(late));
                }
            }
        }
    }

    /// Whether there is a connection that can be used.
    pub(crate) fn is_connected(&self) -> bool {
        self.usable(self.dialer.clock().now()).is_some()
    }

    /// The connection that there is, if it can be used.
    fn usable(&self, now: Moment) -> Option<Arc<MultiplexedConnection>> {
        let mut current = self.current.lock();
        let connection = current.as_ref()?;
        if connection.is_usable(now, self.dialer.failures()) {
            return Some(Arc::clone(connection));
        }
        let unusable = current.take();
        self.dialer.count_failure();
        drop((current, unusable));
        None
    }

    fn dial(
        &self,
        by: Moment,
        mut leader: FlightLeader<'_>,
    ) -> Result<Arc<MultiplexedConnection>, Failure> {
        let failures = self.dialer.failures();
        let outcome = self.dialer.dial(by).and_then(|link| {
            MultiplexedConnection::new(link, failures, self.dialer.command_timeout())
                .map_err(|error| Failure::NotSent(self.dialer.cannot_connect(error)))
        });
        match outcome {
            Ok(connection) => {
                let connection = Arc::new(connection);
                // Before those who wait are told: they look here.
                *self.current.lock() = Some(Arc::clone(&connection));
                // Retired meanwhile: too late for that to find it here, too early to be kept from connecting.
                if self.dialer.is_retired() {
                    self.end(&self.dialer.retired());
                }
                Ok(connection)
            }
            Err(failure) => {
                // It may have failed only because the patience of this caller was too short.
                if self.dialer.clock().now() < by {
                    leader.result = FlightResult::Failed(failure.clone());
                }
                Err(failure)
            }
        }
    }

    /// Ends the connection: nobody shall wait on it any longer.
    pub(crate) fn end(&self, why: &Error) {
        let connection = self.current.lock().take();
        if let Some(connection) = connection {
            connection.close_with(why);
        }
    }
}

impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedConnection")
            .field("server", &format_args!("{}", self.dialer.server()))
            .finish_non_exhaustive()
    }
}

/// One among those who use a connection.
pub(crate) struct ConnectionHandle {
    connection: Arc<MultiplexedConnection>,
    server: Arc<Server>,
}

impl ConnectionLike for ConnectionHandle {
    fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        with_encoded(request, |bytes| self.connection.call(bytes, by))
    }

    fn server(&self) -> &Arc<Server> {
        &self.server
    }

    fn close(&mut self) {
        self.connection.close("answers and questions may be out of step");
    }

    fn is_verified(&self) -> bool {
        self.connection.is_verified()
    }

    fn mark_verified(&mut self) {
        self.connection.mark_verified();
    }

    fn close_with(&mut self, why: &Error) {
        self.connection.close_with(why);
    }
}
