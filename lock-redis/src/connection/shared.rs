//! [`SharedConnection`]: the connection to a server that all threads share, replaced when it fails.

use super::multiplexed::{MultiplexedConnection, OnReply, ReplyPoller, RequestId};
use super::{
    Batch, CallError, CallbackRequest, ConnectionLike, Dialer, Mark, Request, Server,
    ServerGeneration,
};
use crate::connection::single_flight::{Flight, FlightLeader, FlightResult, SingleFlight};
use crate::lua::join::Join;
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use parking_lot::Mutex;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

/// The connection to a server that all threads share: a [multiplexed
/// connection](MultiplexedConnection), dialled when there is no usable one.
pub(crate) struct SharedConnection {
    dialer: Arc<Dialer>,
    current: Mutex<Option<Arc<MultiplexedConnection>>>,
    dialing: SingleFlight,
    poller: ReplyPoller,
    joins: &'static [Join],
}

impl SharedConnection {
    /// Returns a shared connection that is not dialled yet; `joins` lists the requests that may be
    /// joined.
    pub(crate) fn new(dialer: Arc<Dialer>, joins: &'static [Join]) -> Self {
        let poller = ReplyPoller::new(Arc::clone(dialer.clock()));
        Self {
            dialer,
            current: Mutex::default(),
            dialing: SingleFlight::default(),
            poller,
            joins,
        }
    }

    /// Returns the server at the other end.
    pub(crate) fn server(&self) -> &Arc<Server> {
        self.dialer.server()
    }

    /// Sends the only request of a batch, and returns without the reply. May wait until `by` for a
    /// new connection. The first time on a connection, a script is sent by its text.
    ///
    /// The callback gets the outcome: at once if the request could not be sent, otherwise from the
    /// next thread that reads or closes the connection, or from the poller, which fails the request
    /// soon after the deadline.
    pub(crate) fn submit(&self, batch: &Batch, by: Moment, done: OnReply) {
        debug_assert!(batch.only().is_some(), "one reply, one callback");
        let mut callback = CallbackRequest {
            by_hash: Vec::new(),
            text: "",
            done,
        };
        let sent = match self.connection(by) {
            Ok(connection) => {
                let by_text;
                let mut sent = batch;
                if let Some(script) = batch.only().and_then(Mark::script) {
                    if connection.is_first_text(script) {
                        by_text = batch.with_texts(|_| true);
                        sent = &by_text;
                    } else {
                        callback.by_hash.extend_from_slice(batch.bytes());
                        callback.text = script.source;
                    }
                }
                let sent = connection.submit(sent.bytes(), by, callback);
                sent.map(|()| self.poller.add(&connection))
                    .map_err(|(callback, error)| (callback, Failure::from(error)))
            }
            Err(failure) => Err((callback, failure)),
        };
        if let Err((callback, failure)) = sent {
            let _no_reply = (callback.done)(Err(failure));
        }
    }

    /// Waits until the pending callbacks have their replies, so that their requests are not
    /// overtaken by requests on other connections.
    pub(crate) fn wait_for_callbacks(&self, by: Moment) -> Result<(), Failure> {
        const PING: Request<'static> = Request(&[&[b"PING"]]);
        let current = self.current.lock().clone();
        let Some(mut connection) = current else {
            return Ok(());
        };
        let mut awaited = connection.last_callback(RequestId::MAX);
        // Replies arrive in the order of requests, except for requests that are sent again. A
        // connection that is closed has run its callbacks.
        while let Some(last) = awaited {
            match connection.call(&PING, by) {
                Err(CallError::NotSent(error) | CallError::Unknown(error))
                    if self.dialer.clock().now() >= by =>
                {
                    return Err(Failure::NotSent(error));
                }
                Ok(_) | Err(_) => awaited = connection.last_callback(last),
            }
        }
        Ok(())
    }

    /// Returns the connection, dialled first if there is no usable one. One caller dials; the
    /// others wait, each until its own deadline.
    pub(crate) fn connection(&self, by: Moment) -> Result<Arc<MultiplexedConnection>, Failure> {
        loop {
            let now = self.dialer.clock().now();
            if now >= by {
                let late = self
                    .dialer
                    .server()
                    .io_error("take a request", ErrorKind::TimedOut.into());
                return Err(Failure::NotSent(late));
            }
            if let Some(connection) = self.usable(now) {
                return Ok(connection);
            }
            match self.dialing.join(&**self.dialer.clock(), by) {
                Flight::Lead(leader) => {
                    // The previous leader may have dialled since the check above.
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

    /// Returns the generation of the server to which the connection leads, if it is usable and the
    /// server reports the history of its data.
    pub(crate) fn history(&self) -> Option<ServerGeneration> {
        self.usable(self.dialer.clock().now())?.history().cloned()
    }

    /// Returns `true` if there is a usable connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.usable(self.dialer.clock().now()).is_some()
    }

    /// Returns the present connection, if it is usable.
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
        let (failures, began) = (self.dialer.failures(), self.dialer.clock().now());
        let outcome = self.dialer.dial(by).and_then(|connection| {
            let dialed_in = self.dialer.clock().now().since(began);
            let grace = self.dialer.command_timeout();
            let joins = if connection.can_join() {
                self.joins
            } else {
                &[]
            };
            MultiplexedConnection::new(connection, dialed_in, failures, grace, joins)
                .map_err(|error| Failure::NotSent(self.dialer.cannot_connect(error)))
        });
        match outcome {
            Ok(connection) => {
                let connection = Arc::new(connection);
                // Set before the waiting callers are woken, because they check it.
                *self.current.lock() = Some(Arc::clone(&connection));
                // If the server was retired meanwhile, the retirement did not close this
                // connection.
                if self.dialer.is_retired() {
                    self.end(&self.dialer.retired());
                }
                Ok(connection)
            }
            Err(failure) => {
                // At its deadline only this caller is late; the others may succeed.
                if self.dialer.clock().now() < by {
                    leader.result = FlightResult::Failed(failure.clone());
                }
                Err(failure)
            }
        }
    }

    /// Closes the connection with this error for its callers.
    pub(crate) fn end(&self, why: &Error) {
        let connection = self.current.lock().take();
        if let Some(connection) = connection {
            connection.end(why);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Reply, ReplyCheck};
    use crate::lua::Script;
    use lock_core::{Clock, SystemClock};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    fn hear(peer: &mut TcpStream, request: &Request<'_>) {
        let mut expected = Vec::new();
        request.encode(&mut expected);
        let mut heard = vec![0; expected.len()];
        peer.read_exact(&mut heard).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&heard),
            String::from_utf8_lossy(&expected)
        );
    }

    #[test]
    fn wait_for_callbacks_covers_one_that_is_sent_again() {
        const NAME: Request<'_> = Request(&[&[b"CLIENT", b"SETNAME", b""]]);
        const PING: Request<'_> = Request(&[&[b"PING"]]);
        static SCRIPT: Script = Script::new("", "", None, "return 1");
        let by_text = Request(&[&[b"EVAL", b"return 1", b"0"]]);
        let hash: &[&[u8]] = &[b"EVALSHA", SCRIPT.hash().as_bytes(), b"0"];
        let by_hash = [hash];
        let by_hash = Request(&by_hash);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = SharedConnection::new(
            Arc::new(Dialer::to(&listener, Duration::from_secs(60))),
            &[],
        );
        let by = SystemClock.now() + Duration::from_secs(60);
        let submit = || {
            let done = Box::new(|_: Result<Reply, _>| ReplyCheck::Expected);
            shared.submit(&Batch::script(&SCRIPT, &[], &[]), by, done);
        };
        thread::scope(|scope| {
            let peer = scope.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                peer.set_read_timeout(Some(Duration::from_secs(10)))
                    .unwrap();
                hear(&mut peer, &NAME);
                peer.write_all(b"+OK\r\n").unwrap();
                peer
            });
            submit();
            submit();
            let mut peer = peer.join().unwrap();
            let waits = scope.spawn(|| shared.wait_for_callbacks(by));
            [&by_text, &by_hash, &PING]
                .iter()
                .for_each(|request| hear(&mut peer, request));
            peer.write_all(b":1\r\n-NOSCRIPT No it.\r\n+PONG\r\n")
                .unwrap();
            [&by_text, &PING]
                .iter()
                .for_each(|request| hear(&mut peer, request));
            assert!(!waits.is_finished());
            peer.write_all(b":1\r\n+PONG\r\n").unwrap();
            waits.join().unwrap().unwrap();
        });
    }
}
