//! Connections to one server: dialled, used by one thread at a time or by all, and pooled.
//!
//! - [`Connection`]: for one thread at a time, every wait bounded by a deadline
//! - [`SharedConnection`]: for all threads at once, on a [`multiplexed`] connection
//! - [`ConnectionPool`]: connections to borrow
//! - [`dial`]: how connections are made, and which server they lead to
//! - [`resp`]: requests to bytes, bytes to replies
//!
//! A connection that failed once is closed. A late reply to an older request would be taken for the
//! reply to the next one, and that is how a lock gets granted twice.

mod asking;
mod dial;
mod endpoint;
mod multiplexed;
mod pool;
mod resp;
mod shared;
mod shutdown;
mod stream;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

pub(crate) use asking::AskingConnection;
pub(crate) use dial::{
    Cause, CredentialsSource, Dialer, Identity, IdentityKind, Login, PasswordSource, Server,
    ServerGeneration, Timeouts,
};
pub(crate) use endpoint::Endpoint;
pub(crate) use multiplexed::{CallbackRequest, ReplyCheck};
pub(crate) use pool::{ConnectionPool, PoolSlot, PoolThread};
pub(crate) use resp::{DecodeError, ReplyReader, Request, RequestEncoder, script_hash, with_text};
pub(crate) use shared::SharedConnection;
pub(crate) use stream::Stream;
pub(crate) use tls::{TlsOptions, TlsSettings};

use crate::reply::Reply;
use lock_core::backend::Failure;
use lock_core::{Clock, Error, Moment};
use shutdown::SocketHandle;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;
use stream::{DeadlineStream, WriteError};

/// One connection, after its handshake.
pub(crate) struct Connection {
    /// `None` once it is dead.
    stream: Option<DeadlineStream>,
    encoder: RequestEncoder,
    reader: ReplyReader,
    server: Arc<Server>,
    clock: Arc<dyn Clock>,
    last_used: Moment,
    /// The bits of scripts that were sent on it, as far as anybody asked.
    sent_scripts: u32,
    /// Which of the endpoint's servers it leads to.
    generation: ServerGeneration,
    /// By which others can end it.
    _handle: Option<Arc<SocketHandle>>,
}

/// Why a call on a connection has no answer. An error that the server answers with is an answer: [`Reply::Error`].
#[derive(Debug)]
pub(crate) enum CallError {
    /// Not one byte of it left.
    NotSent(Error),
    /// It left, and may be carried out.
    Unknown(Error),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotSent(error) => Self::NotSent(error),
            CallError::Unknown(error) => Self::Unknown(error),
        }
    }
}

/// Something to ask a server on: a connection of one's own, or one that is shared.
pub(crate) trait ConnectionLike {
    /// Sends `request` and returns the answer.
    fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        let (mut replies, outcome) = self.call_many(&[*request], by);
        outcome.map(|()| replies.pop().expect("as many answers as requests"))
    }

    /// Sends `requests`, in one go if it is a connection of one's own, and returns the answers, in the same order, and why not
    /// all of them came. What has no answer may have been carried out, too.
    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        let mut replies = Vec::with_capacity(requests.len());
        for request in requests {
            match self.call(request, by) {
                Ok(reply) => replies.push(reply),
                Err(error) => return (replies, Err(error)),
            }
        }
        (replies, Ok(()))
    }

    /// Whether this script, one bit, was never sent on this connection of one's own. It is taken to have been from now on.
    fn is_first_use(&mut self, _script: u32) -> bool {
        false
    }

    /// Whether this script is sent by its text at once, because to hear that the server does not know its hash would cost
    /// more than a round trip.
    fn needs_script_text(&mut self, _script: u32) -> bool {
        false
    }

    /// The server at the other end.
    fn server(&self) -> &Arc<Server>;

    /// Ends the connection that the last answer came on: it is no answer to what was asked.
    fn close(&mut self);

    /// Whether it was [found out](Self::mark_verified) before, on this very connection, which server this is.
    fn is_verified(&self) -> bool {
        false
    }

    /// From now on it is known which server is at the other end: a connection leads to one and the same until it breaks.
    fn mark_verified(&mut self) {}

    /// Ends that connection for another reason, which is told to whoever waits on it.
    fn close_with(&mut self, why: &Error);
}

impl ConnectionLike for Connection {
    fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        Self::call(self, request, by)
    }

    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        Self::call_many(self, requests, by)
    }

    fn is_first_use(&mut self, script: u32) -> bool {
        let is_first_use = self.sent_scripts & script == 0;
        self.sent_scripts |= script;
        is_first_use
    }

    fn server(&self) -> &Arc<Server> {
        Self::server(self)
    }

    fn close(&mut self) {
        Self::close(self);
    }

    fn close_with(&mut self, _: &Error) {
        Self::close(self);
    }
}

impl Connection {
    /// How long a connection may have been idle and still be used without a look at it.
    const FRESH: Duration = Duration::from_secs(1);
    /// More than any answer to anything we ask has, by far: so that a broken peer cannot fill the memory.
    pub(crate) const LARGEST_REPLY: u64 = 16 << 20;

    fn new(
        stream: Stream,
        handle: Option<Arc<SocketHandle>>,
        server: Arc<Server>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let last_used = clock.now();
        let stream = Some(DeadlineStream::new(stream, Arc::clone(&clock))?);
        let (encoder, reader) = (RequestEncoder::default(), ReplyReader::default());
        Ok(Self {
            stream,
            encoder,
            reader,
            server,
            clock,
            last_used,
            sent_scripts: 0,
            generation: ServerGeneration::default(),
            _handle: handle,
        })
    }

    /// Makes the connection a secret one until `by`, if it is to be one.
    fn handshake_tls(&mut self, by: Moment) -> io::Result<()> {
        self.stream.as_mut().map_or(Ok(()), |stream| stream.handshake_tls(by))
    }

    /// The server at the other end.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Whether this connection can still be used as far as we know.
    pub(crate) fn is_alive(&self) -> bool {
        self.stream.is_some() && !self.generation.is_over()
    }

    /// Which of the endpoint's servers it leads to.
    pub(crate) fn generation(&self) -> &ServerGeneration {
        &self.generation
    }

    /// The server at the other end is not the endpoint's any more, if it is not: what it answered
    /// does not count.
    fn check_generation(&mut self) -> Result<(), CallError> {
        if !self.generation.is_over() {
            return Ok(());
        }
        self.stream = None;
        Err(CallError::Unknown(self.server.superseded()))
    }

    /// Whether it has been idle for long enough that the server may have closed it meanwhile.
    pub(crate) fn is_stale(&self) -> bool {
        self.clock.now().since(self.last_used) > Self::FRESH
    }

    /// Looks, without waiting and without asking the server, whether the connection was closed or has bytes on it that
    /// nobody asked for. Either ends the connection.
    pub(crate) fn check_idle(&mut self) {
        if !self.stream.as_mut().is_some_and(DeadlineStream::is_quiet) {
            self.stream = None;
        }
    }

    /// Ends the connection: what came in on it is no answer to what was asked.
    pub(crate) fn close(&mut self) {
        self.stream = None;
    }

    /// Sends `request` and returns the answer.
    pub(crate) fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        self.send(&[*request], by)?;
        let reply = self.receive(by)?;
        self.settle()?;
        self.check_generation()?;
        Ok(reply)
    }

    /// Sends `requests` in one go and returns the answers, in the same order, and why not all of them came. What has no
    /// answer may have been carried out, too.
    pub(crate) fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        let mut replies = Vec::with_capacity(requests.len());
        let outcome = self.send(requests, by).and_then(|()| {
            for _ in requests {
                replies.push(self.receive(by)?);
            }
            self.settle()
        });
        if let Err(error) = self.check_generation() {
            return (Vec::new(), Err(error));
        }
        (replies, outcome)
    }

    /// The bare connection, for whoever waits on it in another way. `None` if the connection is dead.
    pub(crate) fn into_stream(self) -> Option<Stream> {
        self.stream.map(DeadlineStream::into_stream)
    }

    fn send(&mut self, requests: &[Request<'_>], by: Moment) -> Result<(), CallError> {
        self.stream.take_if(|_| self.generation.is_over());
        let Some(stream) = &mut self.stream else {
            return Err(CallError::NotSent(Error::unavailable(format!(
                "the connection to {} is closed",
                self.server
            ))));
        };
        let error = match stream.write_all(self.encoder.encode(requests), by) {
            Ok(()) => return Ok(()),
            Err(WriteError::Nothing(error)) => {
                CallError::NotSent(self.server.io_error("take a request", error))
            }
            Err(WriteError::Some(error)) => {
                CallError::Unknown(self.server.io_error("take a request", error))
            }
        };
        self.stream = None;
        Err(error)
    }

    /// Reads one reply.
    fn receive(&mut self, by: Moment) -> Result<Reply, CallError> {
        let stream = self.stream.as_mut().expect("a connection that has sent something is alive");
        let mut source = Bounded { stream, by, failure: None };
        let error = match self.reader.next(&mut source) {
            Ok(reply) => return Ok(reply),
            Err(DecodeError::Source) => {
                let failure = source.failure.unwrap_or_else(|| ErrorKind::Other.into());
                self.server.io_error("answer", failure)
            }
            Err(DecodeError::Garbage(why)) => self.server.garbage(why),
        };
        self.stream = None;
        Err(CallError::Unknown(error))
    }

    /// After the last answer. If more came in than the answers have, one of them is the answer to something else, and
    /// nobody can tell which.
    fn settle(&mut self) -> Result<(), CallError> {
        self.last_used = self.clock.now();
        if self.reader.is_empty() {
            return Ok(());
        }
        self.stream = None;
        Err(CallError::Unknown(self.server.garbage("there is more than was asked for")))
    }
}

/// A stream that can be read until a moment, and remembers why it could not.
struct Bounded<'a> {
    stream: &'a mut DeadlineStream,
    by: Moment,
    failure: Option<io::Error>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read_some(into, self.by).map_err(|error| {
            let kind = error.kind();
            self.failure = Some(error);
            kind.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::SystemClock;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let server = Arc::new(Server::new(Endpoint::tcp("test", 1), None));
        let connection =
            Connection::new(Stream::Tcp(ours), None, server, Arc::new(SystemClock)).unwrap();
        (connection, theirs)
    }

    fn soon() -> Moment {
        SystemClock.now() + Duration::from_millis(100)
    }

    const PING: Request<'static> = Request(&[&[b"PING"]]);

    #[test]
    fn a_peer_that_does_not_read_keeps_nobody_beyond_the_deadline() {
        let (mut connection, theirs) = pair();
        let much = vec![b'x'; 32 << 20];
        // Enough to encode it, also unoptimised.
        let by = soon() + Duration::from_millis(400);
        let outcome = connection.call(&Request(&[&[b"SET", b"k", &much]]), by);
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "some of it left: {outcome:?}");
        assert!(!connection.is_alive());
        assert!(matches!(connection.call(&PING, soon()), Err(CallError::NotSent(_))));
        drop(theirs);
    }

    #[test]
    fn an_answer_without_an_end_is_given_up_before_it_fills_the_memory() {
        let (mut connection, mut theirs) = pair();
        let flood = std::thread::spawn(move || {
            let mut written = theirs.write(b"$2000000000\r\n").unwrap();
            while let Ok(count) = theirs.write(&[b'x'; 1 << 16]) {
                written += count;
            }
            written as u64
        });
        let outcome = connection.call(&PING, SystemClock.now() + Duration::from_secs(60));
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
        assert!(!connection.is_alive());
        // What the kernel's buffers hold comes on top.
        assert!(flood.join().unwrap() < 2 * Connection::LARGEST_REPLY);
    }

    #[test]
    fn nothing_is_read_from_a_link_after_a_deadline() {
        let (mut connection, mut theirs) = pair();
        assert!(matches!(connection.call(&PING, soon()), Err(CallError::Unknown(_))));
        let _closed = theirs.write_all(b"+PONG\r\n");
        assert!(matches!(connection.call(&PING, soon()), Err(CallError::NotSent(_))));
    }

    #[test]
    fn what_nobody_asked_for_is_seen_before_the_next_request() {
        let (mut connection, mut theirs) = pair();
        connection.check_idle();
        assert!(connection.is_alive());
        theirs.write_all(b"+OK\r\n").unwrap();
        // On a loopback it is there when the write has returned.
        connection.check_idle();
        assert!(!connection.is_alive());
        let (mut connection, theirs) = pair();
        drop(theirs);
        connection.check_idle();
        assert!(!connection.is_alive());
    }

    #[test]
    fn an_answer_that_was_there_before_the_question_is_not_its_answer() {
        let (mut connection, mut theirs) = pair();
        theirs.write_all(b":1\r\n:2\r\n").unwrap();
        assert!(matches!(connection.call(&PING, soon()), Err(CallError::Unknown(_))));
        assert!(!connection.is_alive());
    }

    #[test]
    fn answers_of_many_come_in_order_and_those_before_the_end_are_told() {
        let (mut connection, mut theirs) = pair();
        theirs.write_all(b":1\r\n-ERR no\r\n").unwrap();
        let (replies, outcome) = connection.call_many(&[PING, PING], soon());
        outcome.unwrap();
        assert_eq!(replies[0], Reply::Int(1));
        assert!(matches!(&replies[1], Reply::Error(error) if error.code == "ERR"));
        theirs.write_all(b":3\r\n").unwrap();
        let (replies, outcome) = connection.call_many(&[PING, PING], soon());
        assert_eq!(replies, [Reply::Int(3)]);
        assert!(matches!(outcome, Err(CallError::Unknown(_))));
    }
}
