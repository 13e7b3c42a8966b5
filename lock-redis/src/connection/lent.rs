//! [`LentPool`]: the application's own pool of connections by the crate `redis`, and
//! [`LentConnection`]: one of them, borrowed for a request.
//!
//! A connection of that crate stays open after a time-out, a reset or half a reply. Such a
//! connection must not go back: the application would read the reply to our request as its own. It
//! has no method that closes it, so its place in the pool gets a connection that is closed, which
//! the pool discards.
//!
//! The application may leave a connection with an unread reply, in a transaction or in another
//! database. So each write begins with a `PING` of a unique word and the `SELECT` of the pool's
//! database. If the replies to them are not as expected, no reply is used.

use super::{Batch, CallError, Reply, Request, Server, ServerError, ServerGeneration, Text};
use crate::lua::ScriptSet;
use lock_core::{Clock, Error, Moment};
use parking_lot::Mutex;
use r2d2::{Pool, PooledConnection};
use redis::{
    Client, Connection, ConnectionLike, IntoConnectionInfo, RedisConnectionInfo, RedisError, Value,
};
use std::fmt;
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shortest time-out of a socket, because zero would mean none.
const LEAST: Duration = Duration::from_millis(1);
/// The longest wait for the closed connection that replaces a broken one, because it is made over
/// the loopback interface.
const CLOSING: Duration = Duration::from_secs(1);
/// The most clients whose knowledge of a connection is kept with it. More clients over one pool
/// query the server anew.
const CLIENTS: usize = 8;

/// The application's pool.
#[derive(Clone)]
pub(crate) struct LentPool {
    pool: Pool<Client>,
    /// The number that tells this client's knowledge of a connection from that of others.
    number: u64,
    /// The time-outs that the application's connections have.
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    broken: Arc<Mutex<Vec<Broken>>>,
}

/// A broken connection for which no closed one could be made, for example because the process had
/// no descriptor left. Its place in the pool stays taken: a drop would give it back.
type Broken = ManuallyDrop<PooledConnection<Client>>;

/// A connection of the application's pool. The drop gives it back, or a closed one in its place.
pub(crate) struct LentConnection {
    /// `None` only during the drop.
    connection: Option<PooledConnection<Client>>,
    pool: LentPool,
    is_broken: bool,
}

/// What a client knows of a connection. It is kept with the connection while the pool has it.
pub(crate) struct Known {
    pub(super) generation: ServerGeneration,
    pub(super) is_standalone: bool,
    pub(super) is_one_store: bool,
    pub(super) sent_scripts: ScriptSet,
    pub(super) last_used: Moment,
}

/// The knowledge of several clients, by their numbers.
#[derive(Default)]
struct KnownByClient(Vec<(u64, Known)>);

impl LentPool {
    pub(crate) fn new(pool: Pool<Client>) -> Self {
        Self {
            pool,
            number: unique(),
            read_timeout: None,
            write_timeout: None,
            broken: Arc::default(),
        }
    }

    /// Returns the pool for another client, which knows nothing of the connections yet.
    pub(crate) fn of_new_client(self) -> Self {
        Self {
            number: unique(),
            ..self
        }
    }

    /// Sets the time-outs of the connections that are given back.
    pub(crate) fn with_timeouts(self, read: Option<Duration>, write: Option<Duration>) -> Self {
        Self {
            read_timeout: read,
            write_timeout: write,
            ..self
        }
    }

    /// Returns the most connections of the pool.
    pub(crate) fn size(&self) -> u32 {
        self.pool.max_size()
    }

    /// Returns true if the pool sends `PING` before it lends a connection: that wait has no bound.
    pub(super) fn may_hang(&self) -> bool {
        self.pool.test_on_check_out()
    }

    /// Borrows a connection, and waits for one until `by`.
    pub(super) fn borrow(&self, clock: &dyn Clock, by: Moment) -> Result<LentConnection, Error> {
        self.replace_broken();
        let left = by.since(clock.now());
        let borrowed = match left.is_zero() {
            true => None,
            false => Some(self.pool.get_timeout(left)),
        };
        match borrowed {
            Some(Ok(connection)) => Ok(LentConnection {
                connection: Some(connection),
                pool: self.clone(),
                is_broken: false,
            }),
            failed => Err(self.late(failed.and_then(Result::err))),
        }
    }

    /// Gives closed connections back in the place of broken ones that are left.
    fn replace_broken(&self) {
        let mut broken = self.broken.lock();
        while let Some(mut connection) = broken.pop() {
            let Some(closed) = closed_connection() else {
                return broken.push(connection);
            };
            **connection = closed;
            drop(ManuallyDrop::into_inner(connection));
        }
    }

    /// Returns the error of a caller that got no connection in time.
    pub(super) fn late(&self, error: Option<r2d2::Error>) -> Error {
        let state = self.pool.state();
        let message = if state.connections == self.size() && state.idle_connections == 0 {
            format!(
                "all {} connections of the application's pool were in use until the deadline: \
                 raise its `max_size`",
                self.size()
            )
        } else {
            "the application's pool could not connect in time: is the server up?".to_owned()
        };
        match error {
            Some(error) => Error::unavailable(message).with_source(error),
            None => Error::unavailable(message),
        }
    }
}

impl fmt::Debug for LentPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentPool")
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl LentConnection {
    /// Sends requests in one write, and returns the replies.
    pub(super) fn exchange(
        &mut self,
        server: &Server,
        (bytes, count): (&[u8], usize),
        clock: &dyn Clock,
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        let mut replies = Vec::with_capacity(count + PREFACE);
        // True from here on, also after a panic: a connection is given back after a whole exchange.
        let was_open = self.connection_is_open();
        self.is_broken = true;
        if !was_open {
            let error = Error::unavailable(format!("the connection to {server} is closed"));
            return (replies, Err(CallError::NotSent(error)));
        }
        if let Err(error) = self.limit(clock, by, Connection::set_write_timeout) {
            self.is_broken = false;
            let error = server.io_error("take a request", error);
            return (replies, Err(CallError::NotSent(error)));
        }
        let word = format!("distlock:{}", unique());
        let mut all = preface(&word, self.own().get_db());
        all.extend_from_slice(bytes);
        let sent = self.own().send_packed_command(&all);
        // A part may have been sent.
        let sent = sent.map_err(|error| failed(server, "take a request", error));
        let outcome = sent.map_err(CallError::Unknown).and_then(|()| {
            while replies.len() < count + PREFACE {
                self.limit(clock, by, Connection::set_read_timeout)
                    .map_err(|error| CallError::Unknown(server.io_error("answer", error)))?;
                match self.own().recv_response() {
                    Ok(Value::Push { .. }) => {}
                    Ok(value) => replies.push(reply(value)),
                    Err(error) => {
                        return Err(CallError::Unknown(failed(server, "answer", error)));
                    }
                }
            }
            Ok(())
        });
        let outcome = match replies.first() {
            Some(answer) if answer.as_bytes() != Some(word.as_bytes()) => {
                let error = out_of_step(server, answer);
                replies.clear();
                Err(CallError::Unknown(error))
            }
            _ => outcome,
        };
        self.is_broken = outcome.is_err();
        replies.drain(..replies.len().min(PREFACE));
        (replies, outcome)
    }

    fn own(&mut self) -> &mut PooledConnection<Client> {
        self.connection.as_mut().expect(HELD)
    }

    /// Limits the next read or write to the time that is left.
    fn limit(
        &mut self,
        clock: &dyn Clock,
        by: Moment,
        set: fn(&Connection, Option<Duration>) -> Result<(), RedisError>,
    ) -> io::Result<()> {
        let left = by.since(clock.now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        set(self.own(), Some(left.max(LEAST))).map_err(io::Error::other)
    }

    pub(super) fn connection_is_open(&self) -> bool {
        !self.is_broken && self.connection.as_ref().is_some_and(|it| it.is_open())
    }

    /// Marks the connection as one that must not be used again.
    pub(super) fn poison(&mut self) {
        self.is_broken = true;
    }

    /// Removes and returns what this client knows of the connection.
    pub(super) fn take_known(&mut self) -> Option<Known> {
        let client = self.pool.number;
        let extensions = PooledConnection::extensions_mut(self.own());
        let all = &mut extensions.get_mut::<KnownByClient>()?.0;
        let own = all.iter().position(|(number, _)| *number == client)?;
        Some(all.swap_remove(own).1)
    }

    /// Keeps what this client knows with the connection.
    pub(super) fn keep(&mut self, known: Known) {
        let client = self.pool.number;
        let extensions = PooledConnection::extensions_mut(self.own());
        let mut all = extensions.remove::<KnownByClient>().unwrap_or_default();
        all.0.truncate(CLIENTS - 1);
        all.0.insert(0, (client, known));
        extensions.insert(all);
    }
}

impl Drop for LentConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let connection = Broken::new(connection);
        let is_restored = !self.is_broken
            && !std::thread::panicking()
            && connection.set_read_timeout(self.pool.read_timeout).is_ok()
            && connection
                .set_write_timeout(self.pool.write_timeout)
                .is_ok();
        if is_restored {
            drop(ManuallyDrop::into_inner(connection));
        } else {
            self.pool.broken.lock().push(connection);
            self.pool.replace_broken();
        }
    }
}

const HELD: &str = "a connection is taken out by the drop alone";

/// Returns a number that no other call has returned.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The number of requests of a preface.
const PREFACE: usize = 2;

/// Returns the requests before those of a write. A refused `SELECT` has no consequence: the
/// application could not have selected another database either.
fn preface(word: &str, database: i64) -> Vec<u8> {
    let mut preface = Batch::new();
    preface.add(&Request(&[&[b"PING", word.as_bytes()]]));
    let database = Text::of(database);
    preface.add(&Request(&[&[b"SELECT", database.as_bytes()]]));
    preface.bytes().to_vec()
}

/// Returns the error of a connection that does not answer `PING` with its word.
fn out_of_step(server: &Server, answer: &Reply) -> Error {
    match answer {
        Reply::Error(error) => Error::unavailable(format!("{server} does not answer `PING`"))
            .with_source(error.clone()),
        _ => Error::unavailable(format!(
            "a connection of the application's pool gave a reply that is not for the request to \
             {server}: was it given back in a transaction, subscribed, or with a reply unread?"
        )),
    }
}

/// Returns a connection that is closed, as its method `is_open` reports, too.
fn closed_connection() -> Option<Connection> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let port = listener.local_addr().ok()?.port();
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = ("127.0.0.1", port).into_connection_info().ok()?;
    let client = Client::open(info.set_redis_settings(silent)).ok()?;
    let mut connection = client.get_connection_with_timeout(CLOSING).ok()?;
    drop(listener.accept().ok()?);
    connection.set_read_timeout(Some(CLOSING)).ok()?;
    let _end = connection.recv_response();
    (!connection.is_open()).then_some(connection)
}

/// Returns the error of a request that got no reply.
fn failed(server: &Server, what: &str, error: RedisError) -> Error {
    let kind = match () {
        () if error.is_timeout() => ErrorKind::TimedOut,
        () if error.is_connection_dropped() => ErrorKind::ConnectionReset,
        () => return server.io_error(what, io::Error::other(error)),
    };
    server.io_error(what, kind.into())
}

/// Translates a reply, also one of RESP3, to RESP2.
fn reply(value: Value) -> Reply {
    let all = |values: Vec<Value>| Reply::Array(values.into_iter().map(reply).collect());
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::Boolean(is_true) => Reply::Int(is_true.into()),
        Value::Okay => Reply::Text("OK".to_owned()),
        Value::SimpleString(text) => Reply::Text(text),
        Value::BulkString(bytes) => Reply::Bulk(bytes),
        Value::VerbatimString { text, .. } => Reply::Bulk(text.into_bytes()),
        Value::Double(number) => Reply::Bulk(number.to_string().into_bytes()),
        Value::Array(values) | Value::Set(values) | Value::Push { data: values, .. } => all(values),
        Value::Map(pairs) => all(pairs
            .into_iter()
            .flat_map(|(key, value)| [key, value])
            .collect()),
        Value::Attribute { data, .. } => reply(*data),
        Value::ServerError(error) => Reply::Error(ServerError {
            code: error.code().to_owned(),
            detail: error.details().unwrap_or_default().to_owned(),
        }),
        other => Reply::Bulk(format!("{other:?}").into_bytes()),
    }
}
