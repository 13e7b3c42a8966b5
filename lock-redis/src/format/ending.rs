//! [`Ending`]: what ends holds, of a mutex or another kind of lock, and how its reply is read.
//!
//! The same request is sent by a caller that waits for the reply, and with a callback.

use super::kinds::KindFormat;
use super::owned::{OwnedFormat, ReleaseRequest};
use super::run::{Run, run};
use super::script_call::ScriptCall;
use super::wakes::Naming;
use super::{released, unexpected};
use crate::connection::{ConnectionLike, Reply, Server};
use crate::lua::Script;
use crate::wakeups::ChannelKind;
use lock_core::Moment;
use lock_core::backend::{AcquisitionId, Failure, Release, ReleaseOptions};
use std::borrow::Cow;

/// What ends holds: sent and waited for, or sent with a callback.
pub(super) struct Ending<'a> {
    format: &'a OwnedFormat,
    /// None for a mutex.
    kind: Option<&'static dyn KindFormat>,
    call: EndingCall<'a>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "a box would cost each release of a mutex an allocation"
)]
enum EndingCall<'a> {
    Mutex(ReleaseRequest<'a>),
    Kind(ScriptCall),
}

impl EndingCall<'_> {
    fn script(&self) -> &'static Script {
        match self {
            Self::Mutex(request) => request.script,
            Self::Kind(call) => call.script,
        }
    }

    /// The lock's key, the first of a script.
    fn key(&self) -> &str {
        match self {
            Self::Mutex(request) => &request.key,
            Self::Kind(call) => &call.keys[0],
        }
    }
}

impl<'a> Ending<'a> {
    pub(super) fn of_kind(
        format: &'a OwnedFormat,
        kind: &'static dyn KindFormat,
        call: ScriptCall,
    ) -> Self {
        Self {
            format,
            kind: Some(kind),
            call: EndingCall::Kind(call),
        }
    }

    /// Sends it, and waits for the reply.
    pub(super) fn run(
        &self,
        link: &mut dyn ConnectionLike,
        by: Moment,
    ) -> Result<Release, Failure> {
        let reply =
            self.send(|script, words| run(script, link, words.keys, words.arguments, by))?;
        let reader = self.reader();
        let release = reader.parse(link.server(), &reply);
        release.ok_or_else(|| unexpected(link, reader.script))
    }

    pub(super) fn reader(&self) -> ReleaseReply<'_> {
        let Self { format, kind, call } = self;
        ReleaseReply {
            script: call.script(),
            key: Cow::Borrowed(call.key()),
            kind: *kind,
            naming: format.naming,
            channels: format.channels(),
            unseen: if kind.is_some() { 0 } else { format.unseen() },
        }
    }

    pub(super) fn send<T>(&self, send: impl FnOnce(&'static Script, &Run<'_>) -> T) -> T {
        let script = self.call.script();
        match &self.call {
            EndingCall::Mutex(request) => {
                let (mut keys, mut arguments) = ([b"".as_slice(); 4], [b"".as_slice(); 8]);
                let (keys, arguments) =
                    (request.keys(&mut keys), request.arguments(&mut arguments));
                send(script, &Run { keys, arguments })
            }
            EndingCall::Kind(call) => {
                let (keys, arguments) = call.words();
                let run = Run {
                    keys: &keys,
                    arguments: &arguments,
                };
                send(script, &run)
            }
        }
    }
}

/// Reads the reply to what ends a hold.
pub(super) struct ReleaseReply<'a> {
    pub(super) script: &'static Script,
    pub(super) key: Cow<'a, str>,
    /// None for a mutex.
    kind: Option<&'static dyn KindFormat>,
    naming: Naming,
    channels: ChannelKind,
    /// How many may wait whom the server does not count.
    unseen: u32,
}

impl ReleaseReply<'_> {
    pub(super) fn to_static(&self) -> ReleaseReply<'static> {
        ReleaseReply {
            key: Cow::Owned(self.key.to_string()),
            ..*self
        }
    }

    /// Where the release is published.
    pub(super) fn channel(&self) -> String {
        match self.kind {
            Some(kind) => kind.channel(&self.key),
            None => self.naming.of(&self.key),
        }
    }

    /// `None` if the script cannot have said this.
    pub(super) fn parse(&self, server: &Server, reply: &Reply) -> Option<Release> {
        released(server, self.channels, || self.channel(), reply, self.unseen)
    }
}

impl OwnedFormat {
    /// What ends a hold of any kind.
    pub(super) fn ending<'a>(
        &'a self,
        acquisition: &'a AcquisitionId,
        options: ReleaseOptions,
    ) -> Result<Ending<'a>, Failure> {
        Ok(match self.kind_format(&acquisition.name)? {
            Some(kind) => Ending::of_kind(self, kind, kind.release(self, acquisition, options)),
            None => Ending {
                format: self,
                kind: None,
                call: EndingCall::Mutex(self.release_request(acquisition, options)),
            },
        })
    }
}
