//! [`PubSubConnection`]: one connection in subscriber mode: its pending requests, and its messages.
//!
//! The connection uses RESP3 if reports of key changes are requested, and the server supports it.
//! Without RESP3, a connection with subscriptions accepts only a few commands, such as `PING` and
//! `SUBSCRIBE`, and gets no reports of key changes.

use super::channel::ChannelKind;
use super::named_owner::NamedOwner;
use super::table::Subscription;
use super::tracked_keys::KeyState;
use crate::connection::{
    Connection, ReadBuffer, Reply, ReplyReader, Request, ServerError, Transport, WriteBuffer,
};
use lock_core::Moment;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One connection in subscriber mode. None of its functions waits.
pub(super) struct PubSubConnection {
    transport: Transport,
    output: WriteBuffer,
    input: ReadBuffer,
    reader: ReplyReader,
    /// Returns true until another server is used instead of this server, or this server loses its
    /// role. Grants that arrive on this connection count only while this returns true.
    is_current: Arc<dyn Fn() -> bool + Send + Sync>,
    unsent: Vec<u8>,
    /// True if bytes that count as sent are still in `output`.
    backlog: bool,
    /// The requests without a reply, with their times, oldest first. The server replies in this
    /// order; only messages and reports come in between.
    pending: VecDeque<(PubSubRequest, Moment)>,
    /// The connection's number from the server's reply to `HELLO`.
    hello: Option<ReportedHere>,
    /// True if the texts of messages are used. Then the messages are no releases.
    reads_text: bool,
    /// The time of the last arrival of a reply or message.
    pub(super) last_received: Moment,
}

/// A request on a connection in subscriber mode.
#[derive(Debug)]
pub(super) enum PubSubRequest {
    Subscribe(Subscription),
    Unsubscribe(Subscription),
    /// Probes whether releases may be published on this channel. The probe goes to a channel
    /// without subscribers: this name with the suffix `:probe`. Sent before the first subscription,
    /// because without RESP3 the server refuses it afterwards.
    Publish(ChannelKind, Arc<str>),
    /// Switches to RESP3.
    Hello,
    /// Makes the server report changes of the keys that are read from now on.
    Track,
    /// Reads whether a key exists.
    Read(Arc<str>),
    /// Reads how many permits of a semaphore are free.
    ReadPermits(Arc<str>),
    Ping,
}

/// A message, or a reply.
#[derive(Debug)]
pub(super) enum PubSubEvent {
    /// A message on this channel, with the next owner if it is a release that names one.
    Message(String, Option<NamedOwner>),
    /// A message on this channel, with its text.
    Text(String, String),
    Confirmed(Subscription),
    Refused(Subscription, ServerError),
    /// The outcome of a probe.
    Published(ChannelKind, Arc<str>, Result<(), ServerError>),
    /// The server ended a subscription by itself.
    Ended(String),
    /// The outcome of the request for reports of key changes.
    Tracking(Result<ReportedHere, ServerError>),
    /// These keys have changed; `None`: all of them.
    Changed(Option<Vec<String>>),
    /// A key was read.
    Read(Arc<str>, KeyState),
    /// A reply without consequences.
    Ignored,
}

/// The number by which other connections direct their reports of key changes to this connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReportedHere {
    /// `None` if the server cannot exclude a client's own changes from the reports.
    pub(super) id: Option<u64>,
}

/// The oldest server version in which `NOLOOP` also excludes a client's own changes by scripts from
/// the reports. With an older version, each renewal would be reported to its own client.
pub(crate) const REPORTS_SINCE: [u32; 3] = [7, 0, 5];

impl ReportedHere {
    /// Reads the reply to `HELLO`: alternating names and values.
    fn read(hello: &[Reply]) -> Self {
        let value = |name: &str| {
            hello
                .chunks(2)
                .find(|pair| text(&pair[0]) == Some(name))
                .and_then(|pair| pair.get(1))
        };
        let version = value("version").and_then(text).unwrap_or_default();
        let version: Vec<u32> = version
            .split('.')
            .map_while(|part| part.parse().ok())
            .collect();
        let id = match value("id") {
            Some(Reply::Int(id)) if *version >= REPORTS_SINCE[..] => u64::try_from(*id).ok(),
            _ => None,
        };
        Self { id }
    }
}

/// The connection is broken, or its replies do not match the requests.
#[derive(Debug)]
pub(super) struct Disconnected;

impl From<io::Error> for Disconnected {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl PubSubConnection {
    /// Takes over the transport of a connection after its handshake.
    pub(super) fn new(
        connection: Connection,
        now: Moment,
        reads_text: bool,
    ) -> Result<Self, Disconnected> {
        let generation = connection.generation().clone();
        Ok(Self {
            is_current: Arc::new(move || !generation.is_over()),
            transport: connection.into_transport().ok_or(Disconnected)?,
            output: WriteBuffer::default(),
            input: ReadBuffer::default(),
            reader: ReplyReader::resp3(),
            unsent: Vec::new(),
            backlog: false,
            pending: VecDeque::new(),
            hello: None,
            reads_text,
            last_received: now,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.transport.fd()
    }

    /// Returns true if another server is used instead of this server by now, or this server has
    /// lost its role.
    pub(super) fn is_over(&self) -> bool {
        !(self.is_current)()
    }

    /// Returns the time of the oldest request without a reply.
    pub(super) fn pending_since(&self) -> Option<Moment> {
        self.pending.front().map(|(_, since)| *since)
    }

    /// Returns whether the reply to the request for reports is still missing.
    pub(super) fn awaits_tracking(&self) -> bool {
        self.pending
            .iter()
            .any(|(it, _)| matches!(it, PubSubRequest::Hello | PubSubRequest::Track))
    }

    pub(super) fn wants_to_write(&self) -> bool {
        self.backlog || !self.unsent.is_empty()
    }

    /// Adds a request. [`flush`](Self::flush) sends it.
    pub(super) fn push(&mut self, request: PubSubRequest, now: Moment) {
        let probe;
        let words: &[&[u8]] = match &request {
            PubSubRequest::Publish(kind, channel) => {
                probe = format!("{channel}:probe");
                &[kind.publish().as_bytes(), probe.as_bytes(), b""]
            }
            PubSubRequest::Subscribe(Subscription { channel, kind, .. }) => match kind {
                ChannelKind::Plain => &[b"SUBSCRIBE", channel.as_bytes()],
                ChannelKind::Sharded => &[b"SSUBSCRIBE", channel.as_bytes()],
            },
            PubSubRequest::Unsubscribe(Subscription { channel, kind, .. }) => match kind {
                ChannelKind::Plain => &[b"UNSUBSCRIBE", channel.as_bytes()],
                ChannelKind::Sharded => &[b"SUNSUBSCRIBE", channel.as_bytes()],
            },
            PubSubRequest::Hello => &[b"HELLO", b"3"],
            PubSubRequest::Track => &[b"CLIENT", b"TRACKING", b"ON"],
            PubSubRequest::Read(key) => &[b"PTTL", key.as_bytes()],
            // As in counted.lua: a number has at most 12 characters, and other data may be large.
            PubSubRequest::ReadPermits(key) => &[b"GETRANGE", key.as_bytes(), b"0", b"11"],
            PubSubRequest::Ping => &[b"PING"],
        };
        Request(&[words]).encode(&mut self.unsent);
        self.pending.push_back((request, now));
    }

    /// Writes as many bytes as the socket accepts.
    pub(super) fn flush(&mut self) -> Result<(), Disconnected> {
        if self.wants_to_write() {
            let progress = self.transport.write(&mut self.output, &self.unsent)?;
            self.unsent.drain(..progress.taken);
            self.backlog = progress.backlog;
        }
        Ok(())
    }

    /// Returns the next event; `None` if none has arrived.
    pub(super) fn receive(&mut self, now: Moment) -> Result<Option<PubSubEvent>, Disconnected> {
        loop {
            if let Some(reply) = self.reader.next().map_err(|_invalid| Disconnected)? {
                self.last_received = now;
                return self.understand(reply).map(Some);
            }
            if !self
                .transport
                .read_available(&mut self.input, self.reader.input())?
            {
                return Ok(None);
            }
        }
    }

    fn understand(&mut self, reply: Reply) -> Result<PubSubEvent, Disconnected> {
        match &reply {
            Reply::Error(error) => self.refused(error),
            // The reply to `HELLO` comes before all messages.
            Reply::Array(parts)
                if matches!(self.pending.front(), Some((PubSubRequest::Hello, _))) =>
            {
                self.pending.pop_front();
                self.hello = Some(ReportedHere::read(parts));
                Ok(PubSubEvent::Ignored)
            }
            Reply::Array(parts) => match &parts[..] {
                [kind, about, rest @ ..] => {
                    self.pushed(text(kind).ok_or(Disconnected)?, about, rest)
                }
                _ => Err(Disconnected),
            },
            reply => self.replied(reply),
        }
    }

    /// Handles a message, the outcome of a subscription, or a report. In RESP2 these are arrays,
    /// like the reply to PING on a connection with subscriptions; in RESP3 they are pushes, while
    /// the reply to HELLO is a map.
    fn pushed(
        &mut self,
        kind: &str,
        about: &Reply,
        rest: &[Reply],
    ) -> Result<PubSubEvent, Disconnected> {
        let channel = text(about);
        // This client has no channel whose name is not UTF-8.
        let named = |event: &dyn Fn(String) -> PubSubEvent| {
            Ok(channel.map_or(PubSubEvent::Ignored, |channel| event(channel.into())))
        };
        match kind {
            "message" if self.reads_text => {
                let said = rest.first().and_then(text).unwrap_or_default().to_owned();
                return named(&move |channel| PubSubEvent::Text(channel, said.clone()));
            }
            "message" | "smessage" => {
                // Only a text with a colon can name an owner. Other releases of this library have
                // the text `0` or `1`; releases of foreign clients may have any text.
                let next = rest
                    .first()
                    .and_then(text)
                    .filter(|text| text.contains(':'));
                let next = next.map(|text| NamedOwner::read(text).only_while(&self.is_current));
                return named(&move |channel| PubSubEvent::Message(channel, next.clone()));
            }
            "sunsubscribe" if !self.is_unsubscribing(channel) => return named(&PubSubEvent::Ended),
            "invalidate" => {
                let keys = about.as_array().map(|keys| {
                    keys.iter()
                        .filter_map(text)
                        .map(str::to_owned)
                        .collect::<Vec<_>>()
                });
                return Ok(PubSubEvent::Changed(keys));
            }
            _ => {}
        }
        // Anything else must be the reply to the oldest request.
        let (request, _) = self.pending.pop_front().ok_or(Disconnected)?;
        match (kind, request) {
            ("subscribe" | "ssubscribe", PubSubRequest::Subscribe(subscription))
                if channel == Some(&*subscription.channel) =>
            {
                Ok(PubSubEvent::Confirmed(subscription))
            }
            ("unsubscribe" | "sunsubscribe", PubSubRequest::Unsubscribe(left))
                if channel == Some(&*left.channel) =>
            {
                Ok(PubSubEvent::Ignored)
            }
            ("pong", PubSubRequest::Ping) => Ok(PubSubEvent::Ignored),
            _ => Err(Disconnected),
        }
    }

    fn replied(&mut self, reply: &Reply) -> Result<PubSubEvent, Disconnected> {
        let (request, _) = self.pending.pop_front().ok_or(Disconnected)?;
        match (reply, request) {
            (Reply::Text(pong), PubSubRequest::Ping) if pong == "PONG" => Ok(PubSubEvent::Ignored),
            (Reply::Text(_), PubSubRequest::Track) => Ok(self
                .hello
                .map_or(PubSubEvent::Ignored, |here| PubSubEvent::Tracking(Ok(here)))),
            (Reply::Int(pttl), PubSubRequest::Read(key)) => {
                let state = if *pttl == ABSENT {
                    KeyState::Free
                } else {
                    KeyState::Held
                };
                Ok(PubSubEvent::Read(key, state))
            }
            (Reply::Bulk(number), PubSubRequest::ReadPermits(key)) => {
                // Without a number, the next attempt sets the number, and may succeed.
                let free = match &number[..] {
                    b"" => Some(1),
                    number => std::str::from_utf8(number)
                        .ok()
                        .and_then(|number| number.parse::<i64>().ok()),
                };
                let state = if free > Some(0) {
                    KeyState::Free
                } else {
                    KeyState::Held
                };
                Ok(PubSubEvent::Read(key, state))
            }
            (Reply::Int(_), PubSubRequest::Publish(kind, channel)) => {
                Ok(PubSubEvent::Published(kind, channel, Ok(())))
            }
            _ => Err(Disconnected),
        }
    }

    /// Returns whether the oldest request ends the subscription of this channel. If the server ends
    /// the subscription by itself at the same time, it sends two `sunsubscribe` messages, and
    /// either can count as the reply.
    fn is_unsubscribing(&self, channel: Option<&str>) -> bool {
        let oldest = self.pending.front().map(|(request, _)| request);
        matches!(oldest, Some(PubSubRequest::Unsubscribe(left)) if channel == Some(&*left.channel))
    }

    fn refused(&mut self, error: &ServerError) -> Result<PubSubEvent, Disconnected> {
        match self.pending.pop_front().ok_or(Disconnected)?.0 {
            PubSubRequest::Subscribe(subscription) => {
                Ok(PubSubEvent::Refused(subscription, error.clone()))
            }
            PubSubRequest::Publish(kind, channel) => {
                Ok(PubSubEvent::Published(kind, channel, Err(error.clone())))
            }
            // Without RESP3 there are no reports; the refusal of `HELLO` was reported already.
            PubSubRequest::Track if self.hello.is_none() => Ok(PubSubEvent::Ignored),
            PubSubRequest::Hello | PubSubRequest::Track => {
                Ok(PubSubEvent::Tracking(Err(error.clone())))
            }
            PubSubRequest::Read(key) | PubSubRequest::ReadPermits(key) => {
                Ok(PubSubEvent::Read(key, KeyState::Unreadable))
            }
            // A refused PING also shows that the server is alive. A refused UNSUBSCRIBE leads to
            // messages that wake no waiter.
            PubSubRequest::Ping | PubSubRequest::Unsubscribe(_) => Ok(PubSubEvent::Ignored),
        }
    }
}

/// The reply to PTTL for a key that does not exist.
const ABSENT: i64 = -2;

fn text(reply: &Reply) -> Option<&str> {
    reply
        .as_bytes()
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
}
