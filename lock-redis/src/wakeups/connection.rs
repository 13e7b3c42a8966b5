//! [`PubSubConnection`]: one connection in subscriber mode: its pending requests, and what arrives.
//!
//! In RESP3, if the server has it: only there commands are carried out on a connection with
//! subscriptions, and changes of keys reported.

use super::channel::ChannelKind;
use super::named_owner::NamedOwner;
use super::table::Subscription;
use super::tracked_keys::KeyState;
use crate::connection::{
    Connection, ReadBuffer, Reply, ReplyReader, Request, ServerError, ServerGeneration, Transport,
    WriteBuffer,
};
use lock_core::Moment;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One connection in subscriber mode. Nothing here waits.
pub(super) struct PubSubConnection {
    transport: Transport,
    output: WriteBuffer,
    input: ReadBuffer,
    reader: ReplyReader,
    /// Which of the endpoint's servers it leads to.
    generation: ServerGeneration,
    unsent: Vec<u8>,
    /// Whether bytes that count as sent are still in `output`.
    backlog: bool,
    /// The requests without a reply, oldest first, and since when. The server replies in order;
    /// only messages come in between.
    pending: VecDeque<(PubSubRequest, Moment)>,
    /// What the server said when it switched to RESP3.
    hello: Option<ReportedHere>,
    /// Whether the texts of messages matter, which are no releases then.
    reads_text: bool,
    /// When something last arrived.
    pub(super) last_received: Moment,
}

/// A request on a connection in subscriber mode.
#[derive(Debug)]
pub(super) enum PubSubRequest {
    Subscribe(Subscription),
    Unsubscribe(Subscription),
    /// Probes whether releases may be published, on a channel beside this one without subscribers.
    /// Only before the first subscription: in subscriber mode the server refuses it.
    Publish(ChannelKind, Arc<str>),
    /// Switches to RESP3.
    Hello,
    /// Has changes of the keys reported that are read from now on.
    Track,
    /// Reads whether a key is there.
    Read(Arc<str>),
    Ping,
}

/// What arrives.
#[derive(Debug)]
pub(super) enum PubSubEvent {
    /// On this channel; of a release that names the owner that is next, with that.
    Message(String, Option<NamedOwner>),
    /// On this channel, with this text.
    Text(String, String),
    Confirmed(Subscription),
    Refused(Subscription, ServerError),
    /// The outcome of a probe.
    Published(ChannelKind, Arc<str>, Result<(), ServerError>),
    /// The server ended a subscription by itself.
    Ended(String),
    /// Whether the server reports changes of keys.
    Tracking(Result<ReportedHere, ServerError>),
    /// These keys have changed; `None`: all of them.
    Changed(Option<Vec<String>>),
    /// A key was read.
    Read(Arc<str>, KeyState),
    /// A reply without consequences.
    Ignored,
}

/// What other connections may have reported to this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReportedHere {
    /// The number of this connection, if a client's own changes need not be reported to it.
    pub(super) id: Option<u64>,
}

/// Before this version `NOLOOP` does not hold for what scripts change: each renewal would be
/// reported.
pub(crate) const REPORTS_SINCE: [u32; 3] = [7, 0, 5];

impl ReportedHere {
    /// Reads the reply to HELLO: names and values in turns.
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

/// The connection is broken, or out of step.
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
        Ok(Self {
            generation: connection.generation().clone(),
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

    /// Whether another server is used at this address by now.
    pub(super) fn is_over(&self) -> bool {
        self.generation.is_over()
    }

    /// Since when the oldest request has no reply.
    pub(super) fn pending_since(&self) -> Option<Moment> {
        self.pending.front().map(|(_, since)| *since)
    }

    /// Whether the server has not said whether it reports changes.
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
            PubSubRequest::Ping => &[b"PING"],
        };
        Request(&[words]).encode(&mut self.unsent);
        self.pending.push_back((request, now));
    }

    /// Writes as much as the peer takes.
    pub(super) fn flush(&mut self) -> Result<(), Disconnected> {
        if self.wants_to_write() {
            let progress = self.transport.write(&mut self.output, &self.unsent)?;
            self.unsent.drain(..progress.taken);
            self.backlog = progress.backlog;
        }
        Ok(())
    }

    /// The next event; `None` if there is none (yet).
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
            // The first reply, before anything is pushed.
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

    /// A message, the outcome of a subscription, or a report. In RESP2 these are arrays, as the
    /// reply to PING is; in RESP3 pushes, while the reply to HELLO is a map.
    fn pushed(
        &mut self,
        kind: &str,
        about: &Reply,
        rest: &[Reply],
    ) -> Result<PubSubEvent, Disconnected> {
        let channel = text(about);
        // A channel that is not UTF-8 is none of ours.
        let named = |event: &dyn Fn(String) -> PubSubEvent| {
            Ok(channel.map_or(PubSubEvent::Ignored, |channel| event(channel.into())))
        };
        match kind {
            "message" if self.reads_text => {
                let said = rest.first().and_then(text).unwrap_or_default().to_owned();
                return named(&move |channel| PubSubEvent::Text(channel, said.clone()));
            }
            "message" | "smessage" => {
                // Plain releases say `0`, or whatever a foreign client says.
                let next = rest
                    .first()
                    .and_then(text)
                    .filter(|text| text.contains(':'));
                let next = next.map(NamedOwner::read);
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
        // The reply to the oldest request, or the two sides are out of step.
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
            (Reply::Int(_), PubSubRequest::Publish(kind, channel)) => {
                Ok(PubSubEvent::Published(kind, channel, Ok(())))
            }
            _ => Err(Disconnected),
        }
    }

    /// Whether the oldest request ends the subscription of this channel. A server that ends it by
    /// itself at the same time says so twice, and it does not matter which is the reply.
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
            // Without RESP3 the refusal of that was reported already.
            PubSubRequest::Track if self.hello.is_none() => Ok(PubSubEvent::Ignored),
            PubSubRequest::Hello | PubSubRequest::Track => {
                Ok(PubSubEvent::Tracking(Err(error.clone())))
            }
            PubSubRequest::Read(key) => Ok(PubSubEvent::Read(key, KeyState::Unreadable)),
            // A refused PING shows a server that is there, too. A refused UNSUBSCRIBE brings
            // messages that wake no waiter.
            PubSubRequest::Ping | PubSubRequest::Unsubscribe(_) => Ok(PubSubEvent::Ignored),
        }
    }
}

/// What PTTL replies for a key that does not exist.
const ABSENT: i64 = -2;

fn text(reply: &Reply) -> Option<&str> {
    reply
        .as_bytes()
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
}
