//! [`Format`]: what stands under a lock's key, and what is sent to take, keep and free it. Without
//! I/O: an operation is a value.
//!
//! - [`redisson`]: a hash of one field, as Redisson's `RLock`; the default
//! - [`token`]: a string, as most others write it: `SET key token NX PX lease`
//! - [`owned`]: what both have in common: the owner stands in the store, and scripts compare it
//! - [`by_kind`]: what is asked of them, for each kind of lock
//! - [`exchange`]: an operation: the requests that are sent next, and how it continues
//! - [`driver`]: the only place where operations meet a connection
//! - `release`: what ends a hold, and how its reply is read
//! - `renewal`: what extends leases, of all kinds in one write
//! - [`label`]: what their owners are called
//! - `listing`: which keys are locks, and many locks at once
//! - [`wakes`]: whose waiters a release wakes besides our own, a setting of `token`
//! - [`classic`]: formats that do not say who holds a lock
//!
//! A library that locks by `SET key owner NX PX` has [`token`] with its `prefix` and `wakes`.
//! A new format with owners is a file here with its [`Dialect`], its functions in `lua/NAME`, an
//! arm and its name in [`settings`], and a place in `DIALECTS`; its commands, where they are new,
//! in `node/diagnosis/rights.rs`; what its key looks like in [`foreign_value`]; its name in
//! `stands_apart` of `cli/src/rows.rs` and in the help of `list`; for the tests a `Format` in
//! `tests/src/subjects`, its mounts in `tests/conformance/mounts.rs` and its libraries in
//! `tests/interop`. INTEROP, DEFAULTS and OPERATIONS describe it.

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
pub(crate) use owned::{OwnedFormat, granted};
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
use lock_core::{
    ClientId, Config, Error, ErrorKind, FencingToken, LockName, OwnerId, TokenRange, WarningKind,
};
use release::ReleaseCall;
use std::sync::Arc;
use std::time::Duration;

/// The option that names it, with the settings that it has behind its name: `token,poll=10ms`, or
/// `token,wakes=python-redis-lock`, by which releases wake that library's waiters, too. All of
/// them: `docs/INTEROP.md`.
pub(crate) const OPTION: &str = "format";

/// The formats with owners, for the tests that go through all of their scripts.
#[cfg(test)]
pub(crate) const DIALECTS: [&Dialect; 4] =
    [&REDISSON, &TOKEN, &PYTHON_REDIS_LOCK, &SPRING_INTEGRATION];

/// What stands under a lock's key: what is sent to take it, look at it and free it.
#[derive(Debug)]
pub(crate) enum FormatKind {
    /// One that says who holds a lock.
    Owned(OwnedFormat),
    /// One that does not.
    Classic(ClassicFormat),
}

/// The wire format of a client, with the settings that it depends on. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Format(pub(crate) Arc<FormatKind>);

impl Format {
    /// The one that `config` names, which was checked: one that says who holds a lock.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] where it names none that there is, or asks it for something that
    /// it does not know.
    pub fn of(config: &Config) -> Result<Self, Error> {
        let format = settings::read_owned_format(config)?;
        Ok(Self(Arc::new(FormatKind::Owned(format))))
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &*self.0 {
            FormatKind::Owned(format) => format.dialect.name,
            FormatKind::Classic(format) => format.name(),
        }
    }

    /// Makes the names of keys.
    pub(crate) fn keys(&self) -> &Keys {
        match &*self.0 {
            FormatKind::Owned(format) => &format.keys,
            FormatKind::Classic(format) => &format.keys,
        }
    }

    /// The commands on keys that it sends, or its scripts run, as an access control list writes
    /// them.
    pub(crate) fn commands(&self) -> Vec<String> {
        match &*self.0 {
            FormatKind::Owned(format) => format.commands(),
            FormatKind::Classic(format) => format.commands(),
        }
    }

    /// This one, where it says who holds a lock.
    pub(crate) fn as_owned(&self) -> Option<&OwnedFormat> {
        match &*self.0 {
            FormatKind::Owned(format) => Some(format),
            FormatKind::Classic(_) => None,
        }
    }

    /// This one, where it does not say who holds a lock.
    pub(crate) fn as_classic(&self) -> Option<&ClassicFormat> {
        match &*self.0 {
            FormatKind::Owned(_) => None,
            FormatKind::Classic(format) => Some(format),
        }
    }

    /// Whether its attempts must go on a connection with no other requests in between.
    pub(crate) fn needs_own_connection(&self) -> bool {
        self.as_classic()
            .is_some_and(ClassicFormat::needs_own_connection)
    }

    /// Tries once to take a lock. See [`Backend::acquire`](lock_core::Backend::acquire).
    /// `is_tracked` says of a key whether its waiters are woken after every release.
    pub(crate) fn acquire<'a>(
        &'a self,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        match &*self.0 {
            FormatKind::Owned(format) => format.acquire(attempt, is_tracked),
            FormatKind::Classic(format) => format.acquire(attempt),
        }
    }

    /// The state of a lock. See [`Backend::peek`](lock_core::Backend::peek).
    pub(crate) fn peek<'a>(&'a self, name: &LockName) -> Exchange<'a, LockInfo> {
        self.inspect_with(name, Labels::LeftOut)
    }

    /// The state of a lock, with its holder's label where the format has labels. See
    /// [`Backend::inspect`](lock_core::Backend::inspect).
    pub(crate) fn inspect<'a>(&'a self, name: &LockName) -> Exchange<'a, LockInfo> {
        self.inspect_with(name, Labels::Read)
    }

    fn inspect_with<'a>(&'a self, name: &LockName, labels: Labels) -> Exchange<'a, LockInfo> {
        match &*self.0 {
            FormatKind::Owned(format) => format.inspect(name, labels),
            FormatKind::Classic(format) => Exchange::from_result(format.inspect(name)),
        }
    }

    /// Makes an attempt of `owner`, of a format that does not say who holds a lock: on a cluster it
    /// continues at the next node where it stood.
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

    /// This acquisition, if its owner holds the lock.
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

    /// Whose waiters its releases wake besides our own, as its setting `wakes=` names them.
    #[must_use]
    pub fn wakes(&self) -> Option<&'static str> {
        self.woken().map(ForeignClient::name)
    }

    /// Whether releases must be told on plain channels, because foreign clients listen there that
    /// know no sharded ones.
    #[must_use]
    pub fn needs_plain_channels(&self) -> bool {
        self.woken() == Some(ForeignClient::SpringIntegration)
    }

    fn woken(&self) -> Option<ForeignClient> {
        self.as_owned().and_then(|format| format.dialect.wakes())
    }

    /// Which requests may leave as one: none where keys may be in different slots.
    pub(crate) fn joins(&self) -> &'static [Join] {
        self.as_owned().map_or(&[], OwnedFormat::joins)
    }

    /// From now on keys may be in different slots, and so on different nodes.
    pub fn use_slots(&self) {
        if let Some(format) = self.as_owned() {
            format.use_slots();
        }
    }

    /// From now on releases are told on sharded channels, which only the nodes of a slot hear of,
    /// or on plain ones.
    pub fn use_sharded_channels(&self, sharded: bool) {
        if let Some(format) = self.as_owned() {
            format.use_sharded_channels(sharded);
        }
    }

    /// The slot that everything of a lock lives in.
    #[must_use]
    pub fn slot(&self, name: &LockName) -> u16 {
        keys::slot(&self.keys().lock(name))
    }

    /// What a store of this format can do, where replicas can be asked in this way.
    #[must_use]
    pub fn abilities(&self, replication: ReplicaSupport) -> Abilities {
        match &*self.0 {
            FormatKind::Owned(format) => format.abilities(replication),
            FormatKind::Classic(format) => format.abilities(),
        }
    }

    /// Whether a lock is held, and what is there looks like one, as far as this format can tell.
    #[must_use]
    pub fn is_lock(&self, info: &LockInfo) -> bool {
        self.as_owned().is_some_and(|format| format.is_lock(info))
    }

    /// Whether a client finds out by its own clock whether a lease is over.
    pub(crate) fn reads_clients_clock(&self) -> bool {
        self.as_classic()
            .is_some_and(ClassicFormat::reads_clients_clock)
    }

    /// Whether it says who holds a lock.
    pub(crate) fn knows_owners(&self) -> bool {
        self.as_owned().is_some()
    }

    /// This one, where it must say who holds a lock: for what cannot do without.
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

    /// Where this client listens for releases of `name`.
    pub(crate) fn watched_channel(
        &self,
        name: &LockName,
        client: ClientId,
    ) -> Result<ReleaseChannel, Failure> {
        Ok(self
            .owned("tell of releases")?
            .watched_channel(name, client))
    }

    /// The key of a quorum node's marker.
    #[must_use]
    pub fn marker_key(&self) -> String {
        self.keys().marker()
    }

    /// For how long a counter of tokens is kept.
    #[must_use]
    pub fn keep(&self) -> Duration {
        self.as_owned().map_or(Duration::ZERO, OwnedFormat::keep)
    }
}

/// Why this format is not asked for another kind of lock.
pub(crate) fn mutexes_only(format: &str) -> Failure {
    let message = format!("the format `{format}` has mutexes only");
    Failure::NotSent(Error::new(ErrorKind::Unsupported, message))
}

/// The server answered, but not as it does to this.
pub(crate) fn unexpected_reply(server: &Server, asked: &str) -> Failure {
    Failure::Unknown(server.garbage(&format!("not one that {asked} gives")))
}

/// What a script that releases says, which was told to publish on this channel; `unseen` waiters it
/// could not count.
pub(crate) fn released(
    server: &Server,
    channels: ChannelKind,
    channel: impl FnOnce() -> String,
    reply: &Reply,
    unseen: u32,
) -> Option<Release> {
    match reply {
        Reply::Int(0) => Some(Release::Gone),
        Reply::Int(more @ 1..) => {
            server.clear_channel_warning(WarningKind::NotPublished, channel);
            let told = u32::try_from(more - 1).unwrap_or(u32::MAX);
            Some(Release::FreedFor(told.saturating_add(unseen)))
        }
        Reply::Array(parts) => match &parts[..] {
            // Freed, and no client was told: so it is not known how many wait.
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

/// Without our own subscription, if that only `lingers`: no thread of this client waits there any
/// more.
pub(crate) fn without_own_subscription(
    release: Release,
    lingers: impl FnOnce() -> bool,
) -> Release {
    match release {
        Release::FreedFor(told @ 1..) if lingers() => Release::FreedFor(told - 1),
        release => release,
    }
}

/// What PTTL says of a key that has no expiry.
pub(crate) const FOR_EVER: i64 = -1;

/// Another client has it, and this is what PTTL says of the key; -2 is what a closed owner hears.
pub(crate) fn busy_from_pttl(pttl: i64) -> Answer {
    if pttl == FOR_EVER {
        Answer::BusyWithoutExpiry(None)
    } else {
        Answer::Busy(remaining(pttl))
    }
}

/// What PTTL says: -1 is "for ever", -2 "not there".
pub(crate) fn remaining(pttl: i64) -> Option<Duration> {
    u64::try_from(pttl).ok().map(Duration::from_millis)
}

/// The token `first` and those that were set aside behind it.
pub(crate) fn token_range(first: i64, reserve: u32) -> Option<TokenRange> {
    let first = u64::try_from(first).ok().filter(|first| *first > 0)?;
    let last = first.checked_add(u64::from(reserve))?;
    TokenRange::new(FencingToken::new(first), FencingToken::new(last))
}
