//! [`ReleaseCall`]: the request that ends holds, of any kind of lock, and how its reply is read.
//!
//! The request is sent by a caller that waits for the reply, or by the drop of a guard, with a
//! callback for the reply. [`ReleaseCall`] is no [`Exchange`](super::exchange::Exchange): otherwise
//! the boxed continuation would cost each `unlock` an allocation.

use super::exchange::Received;
use super::kinds::KindFormat;
use super::owned::OwnedFormat;
use super::released;
use super::script_call::ScriptCall;
use super::wakes::Naming;
use crate::connection::{Batch, Reply, Server};
use crate::lua::Script;
use crate::wakeups::ChannelKind;
use lock_core::LockName;
use lock_core::backend::{AcquisitionId, Failure, Release, ReleaseOptions};
use std::borrow::Cow;
use std::iter::once;

/// The request that ends holds.
pub(crate) struct ReleaseCall<'a> {
    pub(super) batch: Batch,
    pub(super) reader: ReleaseReader<'a>,
}

/// Reads the reply to the request that ends a hold.
pub(crate) struct ReleaseReader<'a> {
    pub(super) script: &'static Script,
    pub(super) key: Cow<'a, str>,
    /// The kind of the lock; `None` for a mutex.
    kind: Option<&'static dyn KindFormat>,
    naming: Naming,
    channels: ChannelKind,
}

impl ReleaseReader<'_> {
    pub(super) fn into_static(self) -> ReleaseReader<'static> {
        ReleaseReader {
            key: Cow::Owned(self.key.into_owned()),
            ..self
        }
    }

    /// Returns the channel on which the release is published.
    pub(super) fn channel(&self) -> String {
        match self.kind {
            Some(kind) => kind.channel(&self.key),
            None => self.naming.of(&self.key),
        }
    }

    /// Reads the reply; `None` if the script cannot have replied this.
    pub(super) fn parse(&self, server: &Server, reply: &Reply) -> Option<Release> {
        released(server, self.channels, || self.channel(), reply)
    }

    pub(super) fn read(&self, received: &mut Received<'_>) -> Result<Release, Failure> {
        let release = self.parse(received.server(), received.reply());
        release.ok_or_else(|| received.unexpected(self.script))
    }
}

impl OwnedFormat {
    fn reader<'a>(
        &self,
        script: &'static Script,
        key: Cow<'a, str>,
        kind: Option<&'static dyn KindFormat>,
    ) -> ReleaseReader<'a> {
        ReleaseReader {
            script,
            key,
            kind,
            naming: self.naming,
            channels: self.channels(),
        }
    }

    /// Returns the request for `call`, by which this kind of lock ends holds.
    fn release_call_of(
        &self,
        kind: &'static dyn KindFormat,
        call: ScriptCall,
    ) -> ReleaseCall<'static> {
        let batch = call.batch();
        let key = call.keys.into_iter().next().unwrap_or_default();
        ReleaseCall {
            batch,
            reader: self.reader(call.script, Cow::Owned(key), Some(kind)),
        }
    }

    /// Returns the request that ends a hold of a lock of any kind. See
    /// [`Backend::release`](lock_core::Backend::release).
    pub(crate) fn release<'a>(
        &self,
        acquisition: &'a AcquisitionId,
        options: ReleaseOptions,
    ) -> Result<ReleaseCall<'a>, Failure> {
        if let Some(kind) = self.kind_format(&acquisition.name)? {
            return Ok(self.release_call_of(kind, kind.release(self, acquisition, options)));
        }
        let request = self.release_request(acquisition, options);
        let (mut keys, mut arguments) = ([b"".as_slice(); 4], [b"".as_slice(); 9]);
        let (keys, arguments) = (request.keys(&mut keys), request.arguments(&mut arguments));
        let batch = Batch::script(request.script, keys, arguments);
        let reader = self.reader(request.script, request.key, None);
        Ok(ReleaseCall { batch, reader })
    }

    /// Returns the request that ends all holds of a lock. See
    /// [`Admin::force_release`](lock_core::backend::Admin::force_release).
    pub(crate) fn force<'a>(&self, name: &'a LockName) -> Result<ReleaseCall<'a>, Failure> {
        if let Some(kind) = self.kind_format(name)? {
            return Ok(self.release_call_of(kind, kind.force(self, name)));
        }
        let key = self.keys.lock(name);
        self.refuse_apart(&key)?;
        let (channel, list) = (self.naming.of(&key), self.list(&key));
        let keys: Vec<_> = once(key.as_bytes())
            .chain(list.iter().map(String::as_bytes))
            .collect();
        let script = &self.dialect.scripts.force;
        let turns = self.turns_of_all().unwrap_or_default();
        let words = [channel.as_bytes(), self.publish(), turns.as_bytes()];
        Ok(ReleaseCall {
            batch: Batch::script(script, &keys, &words),
            reader: self.reader(script, key, None),
        })
    }
}
