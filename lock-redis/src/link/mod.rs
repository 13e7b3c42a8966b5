//! [`Link`]: one connection to one server, used by one thread at a time. Nothing on it waits longer than it was told.
//!
//! A link that failed once - a deadline, a broken connection, an answer that cannot be read - is dead for ever. What
//! might still come in on it would be the answer to an older question, and taking that for the answer to the next one
//! is how locks get granted twice.

mod codec;
mod dial;
mod resolve;
mod wire;

pub(crate) use codec::{DecodeError, Decoder, Encoder, Request, script_hash};
pub(crate) use dial::{Dialer, Login, Server};
pub(crate) use wire::Stream;

use crate::reply::Reply;
use lock_core::backend::Failure;
use lock_core::{Clock, Error, Moment};
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;
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

impl Link {
    /// How long a link may have been idle and still be used without a look at it.
    const FRESH: Duration = Duration::from_secs(1);
    /// More than any answer to anything we ask has, by far: so that a broken peer cannot fill the memory.
    const LARGEST_REPLY: u64 = 16 << 20;

    fn new(stream: Stream, server: Arc<Server>, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let last_used = clock.now();
        let wire = Some(Wire::new(stream, Arc::clone(&clock))?);
        let (encoder, decoder) = (Encoder::default(), Decoder::default());
        Ok(Self { wire, encoder, decoder, server, clock, last_used })
    }

    /// The server at the other end.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Whether this link can still be used as far as we know.
    pub(crate) fn is_alive(&self) -> bool {
        self.wire.is_some()
    }

    /// Whether it has been idle for long enough that the server may have closed it meanwhile.
    pub(crate) fn is_stale(&self) -> bool {
        self.clock.now().since(self.last_used) > Self::FRESH
    }

    /// Looks, without waiting and without asking the server, whether the connection was closed or has bytes on it that
    /// nobody asked for. Either ends the link.
    pub(crate) fn look(&mut self) {
        if !self.wire.as_ref().is_some_and(Wire::is_quiet) {
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
        let mut fed = 0;
        let reply = self.receive(&mut fed, by)?;
        self.settle(fed, reply.wire_length())?;
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
            let mut fed = 0;
            for _ in requests {
                replies.push(self.receive(&mut fed, by)?);
            }
            self.settle(fed, replies.iter().map(Reply::wire_length).sum())
        });
        (replies, outcome)
    }

    /// The bare connection, for whoever waits on it in another way. `None` if the link is dead.
    pub(crate) fn into_stream(self) -> Option<Stream> {
        self.wire.map(Wire::into_stream)
    }

    fn send(&mut self, requests: &[Request<'_>], by: Moment) -> Result<(), CallError> {
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

    /// Reads one reply. `fed` counts the bytes that were read, over several replies.
    fn receive(&mut self, fed: &mut u64, by: Moment) -> Result<Reply, CallError> {
        let wire = self.wire.as_mut().expect("a link that has sent something is alive");
        let mut source = Bounded { wire, by, fed, failure: None };
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
    fn settle(&mut self, fed: u64, answered: u64) -> Result<(), CallError> {
        self.last_used = self.clock.now();
        if fed == answered {
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
    fed: &'a mut u64,
    failure: Option<io::Error>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let outcome = if *self.fed > Link::LARGEST_REPLY {
            Err(io::Error::other("the answer has no end"))
        } else {
            self.wire.read_some(into, self.by)
        };
        match outcome {
            Ok(count) => {
                *self.fed += count as u64;
                Ok(count)
            }
            Err(error) => {
                let kind = error.kind();
                self.failure = Some(error);
                Err(kind.into())
            }
        }
    }
}
