//! [`Format`], the wire format: the value under a lock's key, and the requests that acquire, renew
//! and release the lock. An operation is a value ([`Exchange`]). Only [`driver`] does I/O, and
//! `foreign_value`, which the driver calls.
//!
//! - [`redisson`]: a hash of one field, as Redisson's `RLock`; the default
//! - [`token`]: a string, as most other libraries write it: `SET key token NX PX lease`
//! - [`owned`]: the common part of `redisson` and `token`: the owner is stored under the key, and a
//!   script changes the lock only for that owner
//! - [`by_kind`]: the operations of a format with owners, for each kind of lock
//! - [`exchange`]: an operation: the requests that are sent next, and the continuation for their
//!   replies
//! - [`driver`]: carries out operations on a connection
//! - `release`: the request that ends holds, and how its reply is read
//! - `renewal`: the requests that extend leases, for locks of all kinds in one write
//! - [`label`]: the labels that describe owners to operators
//! - `listing`: lists the locks of a server, and reads many locks at once
//! - [`wakes`]: the setting `wakes=` of `token`: the library whose waiters a release wakes besides
//!   our own
//! - [`classic`]: formats that do not say who holds a lock
//!
//! With the settings `prefix` and `wakes`, [`token`] interoperates with libraries that lock by `SET
//! key owner NX PX`.
//!
//! A new format with owners needs:
//!
//! - a file here with its [`Dialect`], which is also added to `DIALECTS`
//! - in `lua/NAME`, the six functions that `lua/mod.rs` lists
//! - in [`settings`], a `match` arm and the name of the format
//! - in `node/diagnosis/rights.rs`, the commands that no other format sends
//! - in [`foreign_value`], a description of the format's key
//! - in `cli/src/rows.rs`, the name in `stands_apart`, and the name in the help of `list`
//! - for the tests, a `Format` in `tests/src/subjects/format.rs`, mounts in
//!   `tests/conformance/mounts.rs`, and libraries in `tests/interop`
//! - a description in INTEROP, DEFAULTS, OPERATIONS and COMMAND
//!
//! A library that locks as `token` does, but wakes its waiters by another signal, needs no new
//! format, but a further value of the setting `wakes=`:
//!
//! - a variant in `lua/foreign_client.rs`, and an ending of the scripts in `lua/endings`
//! - in [`wakes`], a [`Dialect`], which is also added to `DIALECTS`, and the value in `WORDS`
//! - in [`settings`], the value in the message that lists the settings
//! - a `Format`, mounts and libraries for the tests, as above
//! - a description in INTEROP and OPERATIONS

mod by_kind;
pub(crate) mod classic;
mod dialect;
pub(crate) mod driver;
pub(crate) mod exchange;
mod foreign_value;
pub(crate) mod kinds;
mod label;
mod listing;
mod owned;
mod owner_text;
mod redisson;
mod release;
mod renewal;
mod script_call;
mod settings;
mod token;
mod wakes;

pub(crate) use dialect::Dialect;
pub(crate) use exchange::{Exchange, Received};
use foreign_value::{LONGEST_TEXT, with_found_value};
use label::Labels;
pub(crate) use listing::NodePage;
pub(crate) use owned::OwnedFormat;
pub(crate) use redisson::REDISSON;
pub(crate) use settings::Settings;
pub(crate) use token::TOKEN;
#[cfg(test)]
pub(crate) use wakes::{PYTHON_REDIS_LOCK, SPRING_INTEGRATION};

use crate::connection::{Reply, Server, ServerError};
use crate::keys::{self, Keys};
use crate::lua::foreign_client::ForeignClient;
use crate::lua::join::Join;
use crate::wakeups::{ChannelKind, ReleaseChannel, unpublished};
use classic::ClassicFormat;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, HolderInfo, LockInfo, Release,
    ReplicaSupport,
};
use lock_core::{ClientId, Config, Error, ErrorKind, LockName, OwnerId, WarningKind};
use release::ReleaseCall;
use std::sync::Arc;
use std::time::Duration;

/// The URL option `format=`. Its value is the name of a format, followed by the format's own
/// settings, as in `token,poll=10ms`. `docs/INTEROP.md` lists all settings.
pub(crate) const OPTION: &str = "format";

/// The dialects of the formats with owners, for the tests that go through all scripts.
#[cfg(test)]
pub(crate) const DIALECTS: [&Dialect; 4] =
    [&REDISSON, &TOKEN, &PYTHON_REDIS_LOCK, &SPRING_INTEGRATION];

/// A wire format: the value under a lock's key, and the requests that acquire, read and free the
/// lock.
#[derive(Debug)]
pub(crate) enum FormatKind {
    /// A format that says who holds a lock.
    Owned(OwnedFormat),
    /// A format that does not say who holds a lock.
    Classic(ClassicFormat),
}

/// The wire format of a client, with the settings that it depends on. Clones share their state.
#[derive(Clone, Debug)]
pub struct Format(pub(crate) Arc<FormatKind>);

impl Format {
    /// Reads the format that `config` names, which must be one that says who holds a lock. `config`
    /// must have been checked.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if `config` names no such format, or a setting that the format
    /// does not have or does not accept.
    pub fn of(config: &Config) -> Result<Self, Error> {
        let format = settings::read_owned_format(config)?;
        Ok(Self(Arc::new(FormatKind::Owned(format))))
    }

    /// Returns the format's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &*self.0 {
            FormatKind::Owned(format) => format.dialect.name,
            FormatKind::Classic(format) => format.name(),
        }
    }

    /// Returns the maker of key names.
    pub(crate) fn keys(&self) -> &Keys {
        match &*self.0 {
            FormatKind::Owned(format) => &format.keys,
            FormatKind::Classic(format) => &format.keys,
        }
    }

    /// Returns the commands that the format sends for mutexes, or that its scripts for mutexes run,
    /// as an access control list writes them.
    pub(crate) fn commands(&self) -> Vec<String> {
        match &*self.0 {
            FormatKind::Owned(format) => format.commands(),
            FormatKind::Classic(format) => format.commands(),
        }
    }

    /// Returns the format if it says who holds a lock.
    pub(crate) fn as_owned(&self) -> Option<&OwnedFormat> {
        match &*self.0 {
            FormatKind::Owned(format) => Some(format),
            FormatKind::Classic(_) => None,
        }
    }

    /// Returns the format if it does not say who holds a lock.
    pub(crate) fn as_classic(&self) -> Option<&ClassicFormat> {
        match &*self.0 {
            FormatKind::Owned(_) => None,
            FormatKind::Classic(format) => Some(format),
        }
    }

    /// Returns true if an attempt needs a connection of its own, because no other request may come
    /// between its commands.
    pub(crate) fn needs_own_connection(&self) -> bool {
        self.as_classic()
            .is_some_and(ClassicFormat::needs_own_connection)
    }

    /// Tries once to acquire a lock. See [`Backend::acquire`](lock_core::Backend::acquire).
    /// `is_tracked` is called with a key, and with true if the waiter is the first in its queue.
    /// The function requests reports of the key's changes for a first waiter, and ends such a
    /// request for any other waiter. It returns true if the key's waiters are already woken after
    /// every release.
    pub(crate) fn acquire<'a>(
        &'a self,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        match &*self.0 {
            FormatKind::Owned(format) => format.acquire(attempt, is_tracked),
            FormatKind::Classic(format) => format.acquire(attempt),
        }
    }

    /// Reads the state of a lock, with its holder's label if the format has labels. See
    /// [`Backend::inspect`](lock_core::Backend::inspect).
    pub(crate) fn inspect<'a>(&'a self, name: &LockName) -> Exchange<'a, LockInfo> {
        match &*self.0 {
            FormatKind::Owned(format) => format.inspect(name, Labels::Read),
            FormatKind::Classic(format) => Exchange::from_result(format.inspect(name)),
        }
    }

    /// Runs `attempt`, an attempt of `owner`. In a format that does not say who holds a lock, an
    /// attempt that a cluster redirects does not begin anew: on the next node it continues with the
    /// command at which it stopped.
    pub(crate) fn attempt(
        &self,
        owner: OwnerId,
        attempt: impl FnOnce() -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        match &*self.0 {
            FormatKind::Owned(_) => attempt(),
            FormatKind::Classic(format) => format.attempt(owner, attempt),
        }
    }

    /// Frees a lock of any owner. See
    /// [`Admin::force_release`](lock_core::backend::Admin::force_release).
    pub(crate) fn force<'a>(&'a self, name: &'a LockName) -> Result<Exchange<'a, bool>, Failure> {
        match &*self.0 {
            FormatKind::Owned(format) => {
                let ReleaseCall { batch, reader } = format.force(name)?;
                Ok(Exchange::call(batch, move |received| {
                    Ok(reader.read(received)? != Release::Gone)
                }))
            }
            FormatKind::Classic(format) => format.force(name),
        }
    }

    /// Returns the holder, if it is the owner of this acquisition.
    pub(crate) fn verify<'a>(
        &'a self,
        acquisition: &'a AcquisitionId,
    ) -> Result<Exchange<'a, Option<HolderInfo>>, Failure> {
        match &*self.0 {
            FormatKind::Owned(format) => format.verify(acquisition),
            FormatKind::Classic(format) => {
                let info = format.inspect(&acquisition.name)?;
                Ok(info.map(|info| info.held_by(acquisition.owner)))
            }
        }
    }

    /// Returns the value of the setting `wakes=`: the name of the library whose waiters a release
    /// wakes besides our own. `None` without the setting.
    #[must_use]
    pub fn wakes(&self) -> Option<&'static str> {
        self.woken().map(ForeignClient::name)
    }

    /// Returns true if releases must be published on plain channels, because foreign clients listen
    /// on plain channels only.
    #[must_use]
    pub fn needs_plain_channels(&self) -> bool {
        self.woken() == Some(ForeignClient::SpringIntegration)
    }

    fn woken(&self) -> Option<ForeignClient> {
        self.as_owned().and_then(|format| format.dialect.wakes())
    }

    /// Returns the rules by which several requests are joined into one; no rules if keys may be in
    /// different slots, or if the format does not say who holds a lock.
    pub(crate) fn joins(&self) -> &'static [Join] {
        self.as_owned().map_or(&[], OwnedFormat::joins)
    }

    /// Stops the use of the queue of waiters. For the nodes of a quorum, because each node would
    /// have a queue of its own, with another order.
    pub fn leave_out_queues(&self) {
        if let Some(format) = self.as_owned() {
            format.leave_out_queues();
        }
    }

    /// Notes that keys may be in different slots, and so on different nodes.
    pub fn use_slots(&self) {
        if let Some(format) = self.as_owned() {
            format.use_slots();
        }
    }

    /// Sets on which channels releases are published: on sharded channels, whose messages reach
    /// only the nodes of the key's slot, or on plain channels.
    pub fn use_sharded_channels(&self, sharded: bool) {
        if let Some(format) = self.as_owned() {
            format.use_sharded_channels(sharded);
        }
    }

    /// Returns the cluster slot of a lock's key. The lock's companion keys are in the same slot, or
    /// the lock cannot be acquired.
    #[must_use]
    pub fn slot(&self, name: &LockName) -> u16 {
        keys::slot(&self.keys().lock(name))
    }

    /// Returns the abilities of a store of this format. `replication` is the way in which the
    /// store's replicas can confirm a grant.
    #[must_use]
    pub fn abilities(&self, replication: ReplicaSupport) -> Abilities {
        match &*self.0 {
            FormatKind::Owned(format) => format.abilities(replication),
            FormatKind::Classic(format) => format.abilities(),
        }
    }

    /// Returns true if the lock is held, and its value looks like a lock of this format. Always
    /// false if the format does not say who holds a lock.
    #[must_use]
    pub fn is_lock(&self, info: &LockInfo) -> bool {
        self.as_owned().is_some_and(|format| format.is_lock(info))
    }

    /// Returns true if clients decide by their own clocks whether a lease is over.
    pub(crate) fn reads_clients_clock(&self) -> bool {
        self.as_classic()
            .is_some_and(ClassicFormat::reads_clients_clock)
    }

    /// Returns true if the format says who holds a lock.
    pub(crate) fn knows_owners(&self) -> bool {
        self.as_owned().is_some()
    }

    /// Returns the format if it says who holds a lock. Otherwise returns a failure with the message
    /// that the format cannot `what`.
    pub(crate) fn owned(&self, what: &str) -> Result<&OwnedFormat, Failure> {
        self.as_owned().ok_or_else(|| {
            Failure::NotSent(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the format `{}` does not say who holds a lock, so it cannot {what}",
                    self.name()
                ),
            ))
        })
    }

    /// Returns the channel on which this client listens for releases of `name`.
    pub(crate) fn watched_channel(
        &self,
        name: &LockName,
        client: ClientId,
    ) -> Result<ReleaseChannel, Failure> {
        Ok(self
            .owned("tell of releases")?
            .watched_channel(name, client))
    }

    /// Returns the key of a quorum node's marker.
    #[must_use]
    pub fn marker_key(&self) -> String {
        self.keys().marker()
    }

    /// Returns the retention of a token counter: its value is a timestamp, and its key expires this
    /// long after that time.
    #[must_use]
    pub fn keep(&self) -> Duration {
        self.as_owned().map_or(Duration::ZERO, OwnedFormat::keep)
    }
}

/// Returns the failure of a request for another kind of lock than a mutex, in a format that has
/// mutexes only.
pub(crate) fn mutexes_only(format: &str) -> Failure {
    let message = format!("the format `{format}` has mutexes only");
    Failure::NotSent(Error::new(ErrorKind::Unsupported, message))
}

/// Returns the failure of a command that cannot give the reply that arrived.
pub(crate) fn unexpected_reply_to(server: &Server, command: &str) -> Failure {
    unexpected_reply(server, &format!("the command {command}"))
}

/// Returns the failure of a request whose reply is not one that `asked`, the command or script, can
/// give.
pub(crate) fn unexpected_reply(server: &Server, asked: &str) -> Failure {
    Failure::Unknown(server.garbage(&format!("not one that {asked} gives")))
}

/// Reads the reply of a script that frees a lock and publishes the release on `channel`; `None` if
/// the script cannot have replied this.
pub(crate) fn released(
    server: &Server,
    channels: ChannelKind,
    channel: impl FnOnce() -> String,
    reply: &Reply,
) -> Option<Release> {
    match reply {
        Reply::Int(0) => Some(Release::Gone),
        Reply::Int(1..) => {
            server.clear_channel_warning(WarningKind::NotPublished, channel);
            Some(Release::Freed)
        }
        Reply::Array(parts) => match &parts[..] {
            // Freed, but the release was not published.
            [Reply::Int(1..), Reply::Bulk(why)] => {
                let why = ServerError::parse(&String::from_utf8_lossy(why));
                unpublished(server, &why, channels, &channel());
                Some(Release::Freed)
            }
            _ => None,
        },
        _ => None,
    }
}

/// The reply of `PTTL` for a key without expiry.
pub(crate) const FOR_EVER: i64 = -1;

/// Returns the answer for a lock that another client holds, by the key's `PTTL`. With -2 the answer
/// has no time: the key is gone, or the owner has a tombstone.
pub(crate) fn busy_from_pttl(pttl: i64) -> Answer {
    if pttl == FOR_EVER {
        Answer::BusyWithoutExpiry(None)
    } else {
        Answer::Busy(remaining(pttl))
    }
}

/// Reads a reply of `PTTL`: `None` for -1 (no expiry) and -2 (no key).
pub(crate) fn remaining(pttl: i64) -> Option<Duration> {
    u64::try_from(pttl).ok().map(Duration::from_millis)
}
