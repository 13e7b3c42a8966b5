//! [`PubSubConnection`]: one connection in subscriber mode: what was asked on it and not answered yet, and what comes in.

use super::ChannelKind;
use super::table::{Subscription, Unsubscription};
use crate::connection::{
    Connection, DecodeError, ReplyReader, Request, RequestEncoder, ServerGeneration, Stream,
};
use crate::reply::{Reply, ServerError};
use lock_core::Moment;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// See the [module's text](self). Nothing here waits.
pub(super) struct PubSubConnection {
    stream: Stream,
    /// Which of the endpoint's servers it leads to.
    generation: ServerGeneration,
    encoder: RequestEncoder,
    reader: ReplyReader,
    /// What is to be written, and how much of it is.
    out: Vec<u8>,
    written: usize,
    /// What was asked and not answered yet, oldest first, and since when. The server answers in order; only messages
    /// come in between.
    asked: VecDeque<(PubSubRequest, Moment)>,
    /// When the server was last heard of.
    pub(super) last_heard: Moment,
}

/// What can be asked on a connection in subscriber mode.
#[derive(Debug)]
pub(super) enum PubSubRequest {
    Subscribe(Subscription),
    Unsubscribe(Unsubscription),
    /// Whether releases may be published: something is, on a channel that is not listened to, beside this one. Only
    /// before the first subscription: from then on the server refuses it in any case.
    Publish(ChannelKind, Arc<str>),
    Ping,
}

/// What comes in.
#[derive(Debug)]
pub(super) enum PubSubEvent {
    Message(String),
    Acknowledgement(Subscription),
    Refused(Subscription, ServerError),
    /// Whether releases may be published.
    Published(ChannelKind, Arc<str>, Result<(), ServerError>),
    /// The server has ended a subscription by itself.
    Ended(String),
    /// An answer that nobody waits for.
    Noted,
}

/// The connection is of no use any more.
#[derive(Debug)]
pub(super) struct Disconnected;

impl From<io::Error> for Disconnected {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl PubSubConnection {
    /// Goes on with the connection of a connection that has made its handshake.
    pub(super) fn new(connection: Connection, now: Moment) -> Result<Self, Disconnected> {
        let generation = connection.generation().clone();
        let stream = connection.into_stream().ok_or(Disconnected)?;
        stream.set_nonblocking()?;
        Ok(Self {
            stream,
            generation,
            encoder: RequestEncoder::default(),
            reader: ReplyReader::default(),
            out: Vec::new(),
            written: 0,
            asked: VecDeque::new(),
            last_heard: now,
        })
    }

    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether another server is used at this address by now.
    pub(super) fn is_over(&self) -> bool {
        self.generation.is_over()
    }

    /// Since when the oldest question is unanswered.
    pub(super) fn unanswered_since(&self) -> Option<Moment> {
        self.asked.front().map(|(_, since)| *since)
    }

    /// Whether something is left to be written.
    pub(super) fn wants_to_write(&self) -> bool {
        self.has_unwritten() || self.stream.wants_write()
    }

    fn has_unwritten(&self) -> bool {
        self.written < self.out.len()
    }

    /// Puts a question behind those that are there. [`flush`](Self::flush) sends it.
    pub(super) fn ask(&mut self, question: PubSubRequest, now: Moment) {
        let aside;
        let words: &[&[u8]] = match &question {
            PubSubRequest::Publish(kind, channel) => {
                aside = format!("{channel}:probe");
                &[kind.publish().as_bytes(), aside.as_bytes(), b""]
            }
            PubSubRequest::Subscribe(Subscription { channel, kind, .. }) => match kind {
                ChannelKind::Plain => &[b"SUBSCRIBE", channel.as_bytes()],
                ChannelKind::Sharded => &[b"SSUBSCRIBE", channel.as_bytes()],
            },
            PubSubRequest::Unsubscribe(Unsubscription { channel, kind }) => match kind {
                ChannelKind::Plain => &[b"UNSUBSCRIBE", channel.as_bytes()],
                ChannelKind::Sharded => &[b"SUNSUBSCRIBE", channel.as_bytes()],
            },
            PubSubRequest::Ping => &[b"PING"],
        };
        self.out.extend_from_slice(self.encoder.encode(&[Request(&[words])]));
        self.asked.push_back((question, now));
    }

    /// Writes as much as the connection takes.
    pub(super) fn flush(&mut self) -> Result<(), Disconnected> {
        while self.wants_to_write() {
            let step = if self.has_unwritten() {
                self.stream.write(&self.out[self.written..]).and_then(|count| match count {
                    0 => Err(ErrorKind::WriteZero.into()),
                    count => Ok(count),
                })
            } else {
                self.stream.push().map(|()| 0)
            };
            match step {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Disconnected),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// The next thing that has come in; `None` if there is nothing (more) yet.
    pub(super) fn receive(&mut self, now: Moment) -> Result<Option<PubSubEvent>, Disconnected> {
        let mut source = Available { stream: &mut self.stream, empty: false };
        let reply = match self.reader.next(&mut source) {
            Ok(reply) => reply,
            Err(DecodeError::Source) if source.empty => return Ok(None),
            Err(DecodeError::Source | DecodeError::Garbage(_)) => return Err(Disconnected),
        };
        self.last_heard = now;
        self.understand(reply).map(Some)
    }

    fn understand(&mut self, reply: Reply) -> Result<PubSubEvent, Disconnected> {
        let (kind, channel) = match &reply {
            Reply::Error(error) => return self.refused(error),
            Reply::Text(pong) if pong == "PONG" => ("pong", None),
            Reply::Int(_) => ("publish", None),
            Reply::Array(parts) => match &parts[..] {
                [kind, channel, ..] => (text(kind).ok_or(Disconnected)?, text(channel)),
                _ => return Err(Disconnected),
            },
            _ => return Err(Disconnected),
        };
        if kind == "message" || kind == "smessage" {
            // A name that is not UTF-8 is none that we asked for.
            return Ok(
                channel.map_or(PubSubEvent::Noted, |channel| PubSubEvent::Message(channel.into()))
            );
        }
        if kind == "sunsubscribe" && !self.is_leaving(channel) {
            return Ok(
                channel.map_or(PubSubEvent::Noted, |channel| PubSubEvent::Ended(channel.into()))
            );
        }
        // The answer to the oldest question, or the two sides do not mean the same.
        let (question, _) = self.asked.pop_front().ok_or(Disconnected)?;
        match (kind, question) {
            ("subscribe" | "ssubscribe", PubSubRequest::Subscribe(subscription))
                if channel == Some(&*subscription.channel) =>
            {
                Ok(PubSubEvent::Acknowledgement(subscription))
            }
            ("unsubscribe" | "sunsubscribe", PubSubRequest::Unsubscribe(left))
                if channel == Some(&*left.channel) =>
            {
                Ok(PubSubEvent::Noted)
            }
            ("pong", PubSubRequest::Ping) => Ok(PubSubEvent::Noted),
            ("publish", PubSubRequest::Publish(kind, channel)) => {
                Ok(PubSubEvent::Published(kind, channel, Ok(())))
            }
            _ => Err(Disconnected),
        }
    }

    /// Whether the oldest question is to end the subscription of this channel. A server that ends it by itself at the same
    /// time says so twice; which of the two is the answer does not matter.
    fn is_leaving(&self, channel: Option<&str>) -> bool {
        let oldest = self.asked.front().map(|(question, _)| question);
        matches!(oldest, Some(PubSubRequest::Unsubscribe(left)) if channel == Some(&*left.channel))
    }

    fn refused(&mut self, error: &ServerError) -> Result<PubSubEvent, Disconnected> {
        match self.asked.pop_front().ok_or(Disconnected)?.0 {
            PubSubRequest::Subscribe(subscription) => {
                Ok(PubSubEvent::Refused(subscription, error.clone()))
            }
            PubSubRequest::Publish(kind, channel) => {
                Ok(PubSubEvent::Published(kind, channel, Err(error.clone())))
            }
            // A refused PING shows that the server is there as well as any. A refused UNSUBSCRIBE brings messages
            // that wake nobody.
            PubSubRequest::Ping | PubSubRequest::Unsubscribe(_) => Ok(PubSubEvent::Noted),
        }
    }
}

fn text(reply: &Reply) -> Option<&str> {
    reply.as_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
}

/// What can be read from a stream without waiting.
struct Available<'a> {
    stream: &'a mut Stream,
    /// There is nothing more at the moment, and nothing wrong either.
    empty: bool,
}

impl Read for Available<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.empty = error.kind() == ErrorKind::WouldBlock;
                    return Err(error);
                }
                Ok(count) => return Ok(count),
            }
        }
    }
}
