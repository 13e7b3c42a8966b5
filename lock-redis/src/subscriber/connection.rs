//! [`Connection`]: one connection in subscriber mode: what was asked on it and not answered yet, and what comes in.

use super::Channels;
use super::board::{Leaving, Subscription};
use crate::link::{DecodeError, Decoder, Encoder, Link, Request, Serial, Stream};
use crate::reply::{Reply, ServerError};
use lock_core::Moment;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// See the [module's text](self). Nothing here waits.
pub(super) struct Connection {
    stream: Stream,
    /// Which of the endpoint's servers it leads to.
    serial: Serial,
    encoder: Encoder,
    decoder: Decoder,
    /// What is to be written, and how much of it is.
    out: Vec<u8>,
    written: usize,
    /// What was asked and not answered yet, oldest first, and since when. The server answers in order; only messages
    /// come in between.
    asked: VecDeque<(Question, Moment)>,
    /// When the server was last heard of.
    pub(super) last_heard: Moment,
}

/// What can be asked on a connection in subscriber mode.
#[derive(Debug)]
pub(super) enum Question {
    Subscribe(Subscription),
    Unsubscribe(Leaving),
    /// Whether releases may be published: something is, on a channel that is not listened to, beside this one. Only
    /// before the first subscription: from then on the server refuses it in any case.
    Publish(Channels, Arc<str>),
    Ping,
}

/// What comes in.
#[derive(Debug)]
pub(super) enum Incoming {
    Message(String),
    Confirmed(Subscription),
    Refused(Subscription, ServerError),
    /// Whether releases may be published.
    Published(Channels, Arc<str>, Result<(), ServerError>),
    /// The server has ended a subscription by itself.
    Ended(String),
    /// An answer that nobody waits for.
    Noted,
}

/// The connection is of no use any more.
#[derive(Debug)]
pub(super) struct Broken;

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl Connection {
    /// Goes on with the connection of a link that has made its handshake.
    pub(super) fn new(link: Link, now: Moment) -> Result<Self, Broken> {
        let serial = link.serial().clone();
        let stream = link.into_stream().ok_or(Broken)?;
        stream.set_nonblocking()?;
        Ok(Self {
            stream,
            serial,
            encoder: Encoder::default(),
            decoder: Decoder::default(),
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
        self.serial.is_over()
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
    pub(super) fn ask(&mut self, question: Question, now: Moment) {
        let aside;
        let words: &[&[u8]] = match &question {
            Question::Publish(kind, channel) => {
                aside = format!("{channel}:probe");
                &[kind.publish().as_bytes(), aside.as_bytes(), b""]
            }
            Question::Subscribe(Subscription { channel, kind, .. }) => match kind {
                Channels::Plain => &[b"SUBSCRIBE", channel.as_bytes()],
                Channels::Sharded => &[b"SSUBSCRIBE", channel.as_bytes()],
            },
            Question::Unsubscribe(Leaving { channel, kind }) => match kind {
                Channels::Plain => &[b"UNSUBSCRIBE", channel.as_bytes()],
                Channels::Sharded => &[b"SUNSUBSCRIBE", channel.as_bytes()],
            },
            Question::Ping => &[b"PING"],
        };
        self.out.extend_from_slice(self.encoder.encode(&[Request(&[words])]));
        self.asked.push_back((question, now));
    }

    /// Writes as much as the connection takes.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
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
                Err(_) => return Err(Broken),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// The next thing that has come in; `None` if there is nothing (more) yet.
    pub(super) fn receive(&mut self, now: Moment) -> Result<Option<Incoming>, Broken> {
        let mut source = Available { stream: &mut self.stream, empty: false };
        let reply = match self.decoder.next(&mut source) {
            Ok(reply) => reply,
            Err(DecodeError::Source) if source.empty => return Ok(None),
            Err(DecodeError::Source | DecodeError::Garbage(_)) => return Err(Broken),
        };
        self.last_heard = now;
        self.understand(reply).map(Some)
    }

    fn understand(&mut self, reply: Reply) -> Result<Incoming, Broken> {
        let (kind, channel) = match &reply {
            Reply::Error(error) => return self.refused(error),
            Reply::Text(pong) if pong == "PONG" => ("pong", None),
            Reply::Int(_) => ("publish", None),
            Reply::Array(parts) => match &parts[..] {
                [kind, channel, ..] => (text(kind).ok_or(Broken)?, text(channel)),
                _ => return Err(Broken),
            },
            _ => return Err(Broken),
        };
        if kind == "message" || kind == "smessage" {
            // A name that is not UTF-8 is none that we asked for.
            return Ok(channel.map_or(Incoming::Noted, |channel| Incoming::Message(channel.into())));
        }
        if kind == "sunsubscribe" && !self.is_leaving(channel) {
            return Ok(channel.map_or(Incoming::Noted, |channel| Incoming::Ended(channel.into())));
        }
        // The answer to the oldest question, or the two sides do not mean the same.
        let (question, _) = self.asked.pop_front().ok_or(Broken)?;
        match (kind, question) {
            ("subscribe" | "ssubscribe", Question::Subscribe(subscription))
                if channel == Some(&*subscription.channel) =>
            {
                Ok(Incoming::Confirmed(subscription))
            }
            ("unsubscribe" | "sunsubscribe", Question::Unsubscribe(left))
                if channel == Some(&*left.channel) =>
            {
                Ok(Incoming::Noted)
            }
            ("pong", Question::Ping) => Ok(Incoming::Noted),
            ("publish", Question::Publish(kind, channel)) => {
                Ok(Incoming::Published(kind, channel, Ok(())))
            }
            _ => Err(Broken),
        }
    }

    /// Whether the oldest question is to end the subscription of this channel. A server that ends it by itself at the same
    /// time says so twice; which of the two is the answer does not matter.
    fn is_leaving(&self, channel: Option<&str>) -> bool {
        let oldest = self.asked.front().map(|(question, _)| question);
        matches!(oldest, Some(Question::Unsubscribe(left)) if channel == Some(&*left.channel))
    }

    fn refused(&mut self, error: &ServerError) -> Result<Incoming, Broken> {
        match self.asked.pop_front().ok_or(Broken)?.0 {
            Question::Subscribe(subscription) => Ok(Incoming::Refused(subscription, error.clone())),
            Question::Publish(kind, channel) => {
                Ok(Incoming::Published(kind, channel, Err(error.clone())))
            }
            // A refused PING shows that the server is there as well as any. A refused UNSUBSCRIBE brings messages
            // that wake nobody.
            Question::Ping | Question::Unsubscribe(_) => Ok(Incoming::Noted),
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
