//! [`LentPool`]: the application's own pool of connections by the crate `redis`, and
//! [`LentConnection`]: one of them, borrowed for a request.
//!
//! A connection of that crate stays open after a time-out, a reset or half a reply. Such a
//! connection must not go back: the application would read the reply to our request as its own. It
//! has no method that closes it, so its place in the pool gets a connection that is closed, which
//! the pool discards.
//!
//! The application may leave a connection with an unread reply, in a transaction or in another
//! database. So each write, except inside a transaction of ours, begins with a `PING` of a unique
//! word and the `SELECT` of the database of the pool's client. If another reply comes than the
//! word, no reply is used.

use super::error_mapping::{Asked, explain};
use super::known::Known;
use super::{Batch, CallError, Mark, Reply, Request, Server, ServerError, Text};
use lock_core::backend::run_in_background;
use lock_core::{Clock, Error, Moment, Signal, SystemClock, Woken};
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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The shortest time-out of a socket, because zero would mean none.
const LEAST: Duration = Duration::from_millis(1);
/// The longest wait for a connection before the pool is asked again, because a place may have come
/// free without a notice.
const SLICE: Duration = Duration::from_millis(100);
/// The longest wait for the closed connection that replaces a broken one, because it is made over
/// the loopback interface.
const CLOSING: Duration = Duration::from_secs(1);
/// The pause before broken connections are replaced again, because descriptors rarely become free
/// at once.
const REPLACING: Duration = Duration::from_millis(200);
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
    /// True while a thread replaces the broken connections.
    is_replacing: Arc<AtomicBool>,
    /// The moment at which a connection last failed.
    failed_at: Arc<Mutex<Option<Moment>>>,
    /// The number of changes of the server at the last [`close_idle`](Self::close_idle).
    changes: Arc<AtomicU64>,
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
            is_replacing: Arc::default(),
            failed_at: Arc::default(),
            changes: Arc::default(),
        }
    }

    /// Returns the pool for another client, which knows nothing of the connections yet.
    pub(crate) fn of_new_client(self) -> Self {
        Self {
            number: unique(),
            changes: Arc::default(),
            ..self
        }
    }

    /// Sets the time-outs of the connections that are given back. Zero is none, as for a socket
    /// without one.
    pub(crate) fn with_timeouts(self, read: Option<Duration>, write: Option<Duration>) -> Self {
        Self {
            read_timeout: read.filter(|time| !time.is_zero()),
            write_timeout: write.filter(|time| !time.is_zero()),
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
        let mut failed = None;
        loop {
            let left = by.since(clock.now());
            if left.is_zero() {
                return Err(self.late(failed));
            }
            // In slices, because each call makes a connection if there is room, and `r2d2` wakes no
            // waiter when a closed connection leaves. Longer ones if all are in use, because each
            // slice ends the place among those who wait.
            let is_full = self.pool.state().connections >= self.size();
            let slice = if is_full { SLICE * 10 } else { SLICE };
            match self.pool.get_timeout(left.min(slice)) {
                Ok(connection) => return Ok(self.lend(connection)),
                // `r2d2` names the cause of a failed attempt to connect only once.
                Err(error) if failed.is_none() || has_cause(&error) => failed = Some(error),
                Err(_) => {}
            }
        }
    }

    fn lend(&self, connection: PooledConnection<Client>) -> LentConnection {
        LentConnection {
            connection: Some(connection),
            pool: self.clone(),
            is_broken: false,
        }
    }

    /// Closes the idle connections that do not lead to the server of now, after `changes` of the
    /// server. Otherwise one of them could be taken for a return of the server that was left.
    pub(super) fn close_idle(&self, changes: u64) {
        // A pool that sends `PING` before it lends could hang with all these connections taken.
        if self.may_hang() || self.changes.swap(changes, Ordering::SeqCst) == changes {
            return;
        }
        let idle: Vec<_> = (0..self.pool.state().idle_connections)
            .filter_map(|_| self.pool.try_get())
            .collect();
        for connection in idle {
            let mut lent = self.lend(connection);
            match lent
                .take_known()
                .filter(|known| !known.generation.is_over())
            {
                Some(known) => lent.keep(known),
                None => lent.poison(),
            }
        }
    }

    /// Gives closed connections back in the place of broken ones that are left.
    fn replace_broken(&self) {
        loop {
            // In a separate statement, because the drop below may run code of the application.
            let popped = self.broken.lock().pop();
            let Some(mut connection) = popped else {
                return;
            };
            let Some(closed) = closed_connection() else {
                self.broken.lock().push(connection);
                return self.replace_broken_later();
            };
            **connection = closed;
            drop(ManuallyDrop::into_inner(connection));
            if !self.may_hang() {
                // Fills the place, or wakes those who wait for one: `r2d2` does neither when a
                // closed connection leaves.
                drop(self.pool.get_timeout(Duration::ZERO));
            }
        }
    }

    /// Tries again on another thread until there are descriptors again, because perhaps no client
    /// borrows a connection any more. If there is no thread either, the next borrower tries.
    fn replace_broken_later(&self) {
        if self.is_replacing.swap(true, Ordering::SeqCst) {
            return;
        }
        let pool = self.clone();
        let replace = move || {
            let unraised = Arc::new(Signal::new());
            loop {
                let _due: Woken = SystemClock.wait(&unraised, SystemClock.now() + REPLACING);
                pool.replace_broken();
                if pool.broken.lock().is_empty() {
                    return pool.is_replacing.store(false, Ordering::SeqCst);
                }
            }
        };
        if run_in_background(replace).is_err() {
            self.is_replacing.store(false, Ordering::SeqCst);
        }
    }

    /// Records that a connection has failed: others that were used before may have failed, too.
    fn note_failure(&self, now: Moment) {
        *self.failed_at.lock() = Some(now);
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
        } else if error.as_ref().is_some_and(has_cause) {
            "the application's pool could not connect".to_owned()
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
        batch: &Batch,
        clock: &dyn Clock,
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        // The connection was in step when the transaction began.
        let preface = match batch.marks().any(Mark::in_transaction) {
            true => None,
            false => Some(Preface::of(self.own().get_db())),
        };
        let mut all = preface.as_ref().map_or(Vec::new(), Preface::bytes);
        all.extend_from_slice(batch.bytes());
        let first = preface.as_ref().map_or(0, |_| Preface::REPLIES);
        let count = first + batch.len();
        let mut replies = Vec::with_capacity(count);
        // True from here on, also after a panic: a connection is given back after a whole exchange.
        let was_open = self.connection_is_open();
        self.is_broken = true;
        if !was_open {
            let error = Error::unavailable(format!("the connection to {server} is closed"));
            return (replies, Err(CallError::NotSent(error)));
        }
        if let Err(error) = self.limit(clock, by, Connection::set_write_timeout) {
            // A transaction stays open otherwise.
            self.is_broken = preface.is_none();
            let error = server.io_error("take a request", error);
            return (replies, Err(CallError::NotSent(error)));
        }
        let sent = self.own().send_packed_command(&all);
        // A part may have been sent.
        let sent = sent.map_err(|error| failed(server, "take a request", error));
        let outcome = sent.map_err(CallError::Unknown).and_then(|()| {
            while replies.len() < count {
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
        let refusal = preface.and_then(|preface| preface.refusal(&replies, server));
        let outcome = match refusal {
            Some(error) => {
                replies.clear();
                Err(CallError::Unknown(error))
            }
            None => outcome,
        };
        self.is_broken = outcome.is_err();
        if self.is_broken {
            self.pool.note_failure(clock.now());
        }
        replies.drain(..replies.len().min(first));
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

    /// Returns whether a connection of the pool has failed since this one was used.
    pub(super) fn is_doubtful(&self, last_used: Moment) -> bool {
        let failed = *self.pool.failed_at.lock();
        failed.is_some_and(|failed| last_used <= failed)
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

/// Returns whether an error of the pool names the reason for which it could not connect.
fn has_cause(error: &r2d2::Error) -> bool {
    error.to_string().contains(": ")
}

/// Returns a number that no other call has returned.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The requests before those of a write.
struct Preface {
    word: String,
    database: i64,
}

impl Preface {
    /// The number of replies to a preface.
    const REPLIES: usize = 2;

    fn of(database: i64) -> Self {
        let word = format!("distlock:{}", unique());
        Self { word, database }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut batch = Batch::new();
        batch.add(&Request(&[&[b"PING", self.word.as_bytes()]]));
        // A refusal is ignored: then the application cannot have selected another database.
        let database = Text::of(self.database);
        batch.add(&Request(&[&[b"SELECT", database.as_bytes()]]));
        batch.bytes().to_vec()
    }

    /// Returns the error if `PING` got another reply than its word.
    fn refusal(&self, replies: &[Reply], server: &Server) -> Option<Error> {
        let is_word = |reply: &Reply| reply.as_bytes() == Some(self.word.as_bytes());
        match replies.first()? {
            first if is_word(first) => None,
            // Unless the word comes next: then the error was left unread.
            Reply::Error(error) if !replies.get(1).is_some_and(is_word) => {
                Some(explain(server, error, &Asked::Handshake))
            }
            _ => Some(Error::unavailable(format!(
                "a connection of the application's pool gave a reply that is not for the request \
                 to {server}: was it given back in a transaction, subscribed, or with a reply \
                 unread?"
            ))),
        }
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
