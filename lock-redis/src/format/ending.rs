//! [`Ending`]: what ends a hold, of a mutex or another kind of lock, and how its reply is read.
//!
//! The same request is sent by a caller that waits for the reply, and with a callback.

use super::kinds::KindFormat;
use super::owned::{OwnedFormat, ReleaseRequest};
use super::run::Run;
use super::script_call::ScriptCall;
use super::wakes::Naming;
use super::{released, unexpected};
use crate::connection::{ConnectionLike, Reply, Server};
use crate::lua::Script;
use crate::pubsub::ChannelKind;
use lock_core::LockName;
use lock_core::backend::{AcquisitionId, Failure, Release, ReleaseOptions};
use std::borrow::Cow;

/// What ends a hold: sent and waited for, or sent with a callback.
pub(super) struct Ending<'a> {
    call: EndingCall<'a>,
    pub(super) reader: ReleaseReply<'a>,
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
}

impl Ending<'_> {
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

    pub(super) fn read(
        &self,
        link: &mut dyn ConnectionLike,
        reply: &Reply,
    ) -> Result<Release, Failure> {
        self.parse(link.server(), reply)
            .ok_or_else(|| unexpected(link, self.script))
    }

    /// `None` if the script cannot have said this.
    pub(super) fn parse(&self, server: &Server, reply: &Reply) -> Option<Release> {
        released(server, self.channels, || self.channel(), reply, self.unseen)
    }
}

impl OwnedFormat {
    /// What ends a hold of any kind.
    pub(super) fn ending<'a>(
        &self,
        acquisition: &'a AcquisitionId,
        options: ReleaseOptions,
    ) -> Result<Ending<'a>, Failure> {
        let kind = self.kind_format(&acquisition.name)?;
        let call = match kind {
            Some(kind) => EndingCall::Kind(kind.release(self, acquisition, options)),
            None => EndingCall::Mutex(self.release_request(acquisition, options)),
        };
        let reader = self.release_reply(kind, call.script(), &acquisition.name);
        Ok(Ending { call, reader })
    }

    pub(super) fn release_reply<'a>(
        &self,
        kind: Option<&'static dyn KindFormat>,
        script: &'static Script,
        name: &'a LockName,
    ) -> ReleaseReply<'a> {
        ReleaseReply {
            script,
            key: self.keys.lock(name),
            kind,
            naming: self.naming,
            channels: self.channels(),
            unseen: if kind.is_some() { 0 } else { self.unseen() },
        }
    }
}
