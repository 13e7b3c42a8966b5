//! [`Link`]: one connection to one server, used by one thread at a time. Nothing on it waits longer than it was told.
//! [`SharedLink`]: one that all threads use at the same time.
//!
//! A link that failed once - a deadline, a broken connection, an answer that cannot be read - is dead for ever. What
//! might still come in on it would be the answer to an older question, and taking that for the answer to the next one
//! is how locks get granted twice.

mod asking;
mod codec;
mod dial;
mod duplex;
mod elsewhere;
mod frames;
mod place;
mod resolve;
mod shared;
mod term;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod wire;

pub(crate) use asking::Asking;
#[cfg(test)]
pub(crate) use codec::parsed_by_crate;
pub(crate) use codec::{DecodeError, Decoder, Encoder, Request, script_hash, with_text};
pub(crate) use dial::{
    Bounds, Cause, Dialer, Identity, Kind, Login, Password, Secrets, Serial, Server,
};
pub(crate) use duplex::{Errand, Heard};
pub(crate) use frames::Frames;
pub(crate) use place::Place;
pub(crate) use shared::SharedLink;
pub(crate) use tls::{TlsOptions, TlsSettings};
pub(crate) use wire::Stream;

use crate::reply::Reply;
use lock_core::backend::Failure;
use lock_core::{Clock, Error, Moment};
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;
use term::Handle;
use wire::{Wire, WriteError};

/// One connection, after its handshake.
pub(crate) struct Link {
    /// `None` once it is dead.
    wire: Option<Wire>,
    encoder: Encoder,
    decoder: Decoder,
    server: Arc<Server>,
    clock: Arc<dyn Clock>,
    last_used: Moment,
    /// The bits of scripts that were sent on it, as far as anybody asked.
    sent_scripts: u32,
    /// Which of the endpoint's servers it leads to.
    serial: Serial,
    /// By which others can end it.
    _handle: Option<Arc<Handle>>,
}

/// Why a call on a link has no answer. An error that the server answers with is an answer: [`Reply::Error`].
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

/// Something to ask a server on: a link of one's own, or one that is shared.
pub(crate) trait Ask {
    /// Sends `request` and returns the answer.
    fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        let (mut replies, outcome) = self.call_many(&[*request], by);
        outcome.map(|()| replies.pop().expect("as many answers as requests"))
    }

    /// Sends `requests`, in one go if it is a link of one's own, and returns the answers, in the same order, and why not
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

    /// Whether this script, one bit, was never sent on this link of one's own. It is taken to have been from now on.
    fn is_first(&mut self, _script: u32) -> bool {
        false
    }

    /// Whether this script is sent by its text at once, because to hear that the server does not know its hash would cost
    /// more than a round trip.
    fn wants_text(&mut self, _script: u32) -> bool {
        false
    }

    /// The server at the other end.
    fn server(&self) -> &Arc<Server>;

    /// Ends the connection that the last answer came on: it is no answer to what was asked.
    fn condemn(&mut self);

    /// Whether it was [found out](Self::vouch) before, on this very connection, which server this is.
    fn is_vouched_for(&self) -> bool {
        false
    }

    /// From now on it is known which server is at the other end: a connection leads to one and the same until it breaks.
    fn vouch(&mut self) {}

    /// Ends that connection for another reason, which is told to whoever waits on it.
    fn end_for(&mut self, why: &Error);
}

impl Ask for Link {
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

    fn is_first(&mut self, script: u32) -> bool {
        let is_first = self.sent_scripts & script == 0;
        self.sent_scripts |= script;
        is_first
    }

    fn server(&self) -> &Arc<Server> {
        Self::server(self)
    }

    fn condemn(&mut self) {
        Self::condemn(self);
    }

    fn end_for(&mut self, _: &Error) {
        Self::condemn(self);
    }
}

impl Link {
    /// How long a link may have been idle and still be used without a look at it.
    const FRESH: Duration = Duration::from_secs(1);
    /// More than any answer to anything we ask has, by far: so that a broken peer cannot fill the memory.
    pub(crate) const LARGEST_REPLY: u64 = 16 << 20;

    fn new(
        stream: Stream,
        handle: Option<Arc<Handle>>,
        server: Arc<Server>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let last_used = clock.now();
        let wire = Some(Wire::new(stream, Arc::clone(&clock))?);
        let (encoder, decoder) = (Encoder::default(), Decoder::default());
        Ok(Self {
            wire,
            encoder,
            decoder,
            server,
            clock,
            last_used,
            sent_scripts: 0,
            serial: Serial::default(),
            _handle: handle,
        })
    }

    /// Makes the connection a secret one until `by`, if it is to be one.
    fn shake_hands(&mut self, by: Moment) -> io::Result<()> {
        self.wire.as_mut().map_or(Ok(()), |wire| wire.shake_hands(by))
    }

    /// The server at the other end.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Whether this link can still be used as far as we know.
    pub(crate) fn is_alive(&self) -> bool {
        self.wire.is_some() && !self.serial.is_over()
    }

    /// Which of the endpoint's servers it leads to.
    pub(crate) fn serial(&self) -> &Serial {
        &self.serial
    }

    /// The server at the other end is not the endpoint's any more, if it is not: what it answered
    /// does not count.
    fn must_count(&mut self) -> Result<(), CallError> {
        if !self.serial.is_over() {
            return Ok(());
        }
        self.wire = None;
        Err(CallError::Unknown(self.server.superseded()))
    }

    /// Whether it has been idle for long enough that the server may have closed it meanwhile.
    pub(crate) fn is_stale(&self) -> bool {
        self.clock.now().since(self.last_used) > Self::FRESH
    }

    /// Looks, without waiting and without asking the server, whether the connection was closed or has bytes on it that
    /// nobody asked for. Either ends the link.
    pub(crate) fn look(&mut self) {
        if !self.wire.as_mut().is_some_and(Wire::is_quiet) {
            self.wire = None;
        }
    }

    /// Ends the link: what came in on it is no answer to what was asked.
    pub(crate) fn condemn(&mut self) {
        self.wire = None;
    }

    /// Sends `request` and returns the answer.
    pub(crate) fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        self.send(&[*request], by)?;
        let reply = self.receive(by)?;
        self.settle()?;
        self.must_count()?;
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
        if let Err(error) = self.must_count() {
            return (Vec::new(), Err(error));
        }
        (replies, outcome)
    }

    /// The bare connection, for whoever waits on it in another way. `None` if the link is dead.
    pub(crate) fn into_stream(self) -> Option<Stream> {
        self.wire.map(Wire::into_stream)
    }

    fn send(&mut self, requests: &[Request<'_>], by: Moment) -> Result<(), CallError> {
        self.wire.take_if(|_| self.serial.is_over());
        let Some(wire) = &mut self.wire else {
            return Err(CallError::NotSent(Error::unavailable(format!(
                "the connection to {} is closed",
                self.server
            ))));
        };
        let error = match wire.write_all(self.encoder.encode(requests), by) {
            Ok(()) => return Ok(()),
            Err(WriteError::Nothing(error)) => {
                CallError::NotSent(self.server.io_error("take a request", error))
            }
            Err(WriteError::Some(error)) => {
                CallError::Unknown(self.server.io_error("take a request", error))
            }
        };
        self.wire = None;
        Err(error)
    }

    /// Reads one reply.
    fn receive(&mut self, by: Moment) -> Result<Reply, CallError> {
        let wire = self.wire.as_mut().expect("a link that has sent something is alive");
        let mut source = Bounded { wire, by, failure: None };
        let error = match self.decoder.next(&mut source) {
            Ok(reply) => return Ok(reply),
            Err(DecodeError::Source) => {
                let failure = source.failure.unwrap_or_else(|| ErrorKind::Other.into());
                self.server.io_error("answer", failure)
            }
            Err(DecodeError::Garbage(why)) => self.server.garbage(why),
        };
        self.wire = None;
        Err(CallError::Unknown(error))
    }

    /// After the last answer. If more came in than the answers have, one of them is the answer to something else, and
    /// nobody can tell which.
    fn settle(&mut self) -> Result<(), CallError> {
        self.last_used = self.clock.now();
        if self.decoder.is_empty() {
            return Ok(());
        }
        self.wire = None;
        Err(CallError::Unknown(self.server.garbage("there is more than was asked for")))
    }
}

/// A wire that can be read until a moment, and remembers why it could not.
struct Bounded<'a> {
    wire: &'a mut Wire,
    by: Moment,
    failure: Option<io::Error>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wire.read_some(into, self.by).map_err(|error| {
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

    fn pair() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let server = Arc::new(Server::new(Place::tcp("test", 1), None));
        let link = Link::new(Stream::Tcp(ours), None, server, Arc::new(SystemClock)).unwrap();
        (link, theirs)
    }

    fn soon() -> Moment {
        SystemClock.now() + Duration::from_millis(100)
    }

    const PING: Request<'static> = Request(&[&[b"PING"]]);

    #[test]
    fn a_peer_that_does_not_read_keeps_nobody_beyond_the_deadline() {
        let (mut link, theirs) = pair();
        let much = vec![b'x'; 32 << 20];
        // Enough to encode it, also unoptimised.
        let by = soon() + Duration::from_millis(400);
        let outcome = link.call(&Request(&[&[b"SET", b"k", &much]]), by);
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "some of it left: {outcome:?}");
        assert!(!link.is_alive());
        assert!(matches!(link.call(&PING, soon()), Err(CallError::NotSent(_))));
        drop(theirs);
    }

    #[test]
    fn an_answer_without_an_end_is_given_up_before_it_fills_the_memory() {
        let (mut link, mut theirs) = pair();
        let flood = std::thread::spawn(move || {
            let mut written = theirs.write(b"$2000000000\r\n").unwrap();
            while let Ok(count) = theirs.write(&[b'x'; 1 << 16]) {
                written += count;
            }
            written as u64
        });
        let outcome = link.call(&PING, SystemClock.now() + Duration::from_secs(60));
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
        assert!(!link.is_alive());
        // What the kernel's buffers hold comes on top.
        assert!(flood.join().unwrap() < 2 * Link::LARGEST_REPLY);
    }

    #[test]
    fn nothing_is_read_from_a_link_after_a_deadline() {
        let (mut link, mut theirs) = pair();
        assert!(matches!(link.call(&PING, soon()), Err(CallError::Unknown(_))));
        let _closed = theirs.write_all(b"+PONG\r\n");
        assert!(matches!(link.call(&PING, soon()), Err(CallError::NotSent(_))));
    }

    #[test]
    fn what_nobody_asked_for_is_seen_before_the_next_request() {
        let (mut link, mut theirs) = pair();
        link.look();
        assert!(link.is_alive());
        theirs.write_all(b"+OK\r\n").unwrap();
        // On a loopback it is there when the write has returned.
        link.look();
        assert!(!link.is_alive());
        let (mut link, theirs) = pair();
        drop(theirs);
        link.look();
        assert!(!link.is_alive());
    }

    #[test]
    fn an_answer_that_was_there_before_the_question_is_not_its_answer() {
        let (mut link, mut theirs) = pair();
        theirs.write_all(b":1\r\n:2\r\n").unwrap();
        assert!(matches!(link.call(&PING, soon()), Err(CallError::Unknown(_))));
        assert!(!link.is_alive());
    }

    #[test]
    fn answers_of_many_come_in_order_and_those_before_the_end_are_told() {
        let (mut link, mut theirs) = pair();
        theirs.write_all(b":1\r\n-ERR no\r\n").unwrap();
        let (replies, outcome) = link.call_many(&[PING, PING], soon());
        outcome.unwrap();
        assert_eq!(replies[0], Reply::Int(1));
        assert!(matches!(&replies[1], Reply::Error(error) if error.code == "ERR"));
        theirs.write_all(b":3\r\n").unwrap();
        let (replies, outcome) = link.call_many(&[PING, PING], soon());
        assert_eq!(replies, [Reply::Int(3)]);
        assert!(matches!(outcome, Err(CallError::Unknown(_))));
    }
}
