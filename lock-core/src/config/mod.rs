//! [`Config`]: every setting, from a URL, a file, the environment, and setters.

// CONTRIBUTING says what a new setting needs. The kinds of stores that a URL can name are in
// `scheme`.

mod address;
mod check;
mod credentials;
mod definitions;
mod duration;
mod environment;
mod file;
mod label;
mod option;
pub(crate) mod scheme;
mod secret;
#[cfg(feature = "toml")]
mod set;
mod similar;

pub use crate::backend::replication::{
    InsufficientReplicas, OnInsufficientReplicas, Replicas, Replication,
};
pub use address::Host;
pub use credentials::{Credentials, CredentialsProvider};
pub(crate) use definitions::wrong_timeout;
pub use option::Setting;
pub(crate) use option::did_you_mean;
pub use secret::Secret;
#[cfg(feature = "toml")]
pub(crate) use set::ClientKey;
#[cfg(feature = "toml")]
pub use set::ConfigSet;
use similar::similar;

use crate::backend::WAITER_PRESENCE;
use crate::error::Error;
use address::Address;
use credentials::Provider;
use file::Scalar;
use option::{Origins, SchemeOption, Source};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Every setting of a client.
///
/// One URL is enough: `scheme://user:password@host:port/path?option=value`. A file and
/// [`with_option`](Self::with_option) accept the same options; the environment and the other
/// setters accept all but the options of a scheme. The later source wins, usually in this order:
/// the defaults; the URL ([`from_url`](Self::from_url)) or a file (`from_file`, with the feature
/// `toml`; its lines win over the options of its URL); the environment
/// ([`with_env`](Self::with_env)); the setters. A file with several stores, or with settings for
/// some locks, is read into a `ConfigSet` (feature `toml`).
///
/// A program with its own configuration file can read one of the file's tables into this type with
/// serde, in any format. Durations are text, as in the URL (`"30s"`, `"1m 30s"`, `"500ms"`):
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::Config;
///
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     locks: Config,
/// }
///
/// // The message of an error only: the rest of it quotes the file, password included.
/// let settings: Settings = toml::from_str(r#"
///     [locks]
///     url = "memory://orders"
///     watchdog = "10s"
/// "#).map_err(|e| distlock::Error::configuration(e.message()))?;
/// assert_eq!(settings.locks.watchdog(), std::time::Duration::from_secs(10));
/// # Ok::<(), distlock::Error>(())
/// ```
///
/// [`Debug`](std::fmt::Debug) does not show the password.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "BTreeMap<String, Scalar>")]
pub struct Config {
    address: Address,
    password_file: Option<PathBuf>,
    credentials: Option<Provider>,
    watchdog: Duration,
    lease: Option<Duration>,
    outage_limit: Option<Duration>,
    hand_off: Duration,
    restart_grace: Duration,
    order: LockOrder,
    fair_presence: Duration,
    connect_timeout: Duration,
    command_timeout: Duration,
    pool: u32,
    client_name: Option<String>,
    owner: Option<String>,
    prefix: String,
    writers: WriterPriority,
    tokens: TokenPolicy,
    token_retention: Duration,
    replication: Replication,
    /// Options of the scheme, which are not settings of this type.
    scheme_options: BTreeMap<String, SchemeOption>,
    /// The unknown environment variables that begin with `DISTLOCK_`.
    unknown_variables: Vec<String>,
    /// True if the environment variables were read, or need not be reported again.
    reads_environment: bool,
    /// The errors in values given to `with_option`. A setter does not fail, so `check` reports
    /// them.
    unreadable: Vec<String>,
    origins: Origins,
}

/// The policy for fencing tokens: whether locks have them, and how long the store keeps the
/// counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum TokenPolicy {
    /// Tokens from a counter that expires when it is not used ([`Config::with_token_retention`]),
    /// so that millions of lock names leave no data behind. The default.
    #[default]
    Expire,
    /// Tokens from a counter that never expires: required if Redisson's `RFencedLock` uses the same
    /// lock.
    Keep,
    /// No tokens: `fencing_token()` is `None`.
    Off,
}

/// The order in which mutexes and semaphores are granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum LockOrder {
    /// Clients take turns if the store has a queue of waiters, and compete otherwise. Within a
    /// client, threads get the lock in the order of their arrival. The default.
    #[default]
    Any,
    /// All threads of all clients get the lock in the order of their arrival: each mutex and each
    /// semaphore is [fair](crate::Client::fair_mutex).
    Fair,
}

/// The priority of a waiting writer of a [read-write lock](crate::RwLock) over readers that arrive
/// later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum WriterPriority {
    /// A waiting writer keeps new readers out, so that overlapping readers cannot delay it without
    /// end. The default.
    #[default]
    First,
    /// A waiting writer does not keep new readers out, as in Redisson: it waits until no reader
    /// holds the lock.
    Equal,
}

impl Config {
    /// The default lease of a watched lock, as in Redisson (`lockWatchdogTimeout`).
    pub const DEFAULT_WATCHDOG: Duration = Duration::from_secs(30);
    /// The default limit on the time to open a connection: thousands of round trips in a data
    /// centre, so that only a dead server exceeds it, and short for a person who waits.
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
    /// The default limit on the time of one command: a fifteenth of the default lease, so that a
    /// lost renewal can be repeated.
    pub const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
    /// The default time for which threads of a client may hand a lock to each other: long compared
    /// with a round trip, so that hand-offs save most requests, and short for waiters of other
    /// clients.
    pub const DEFAULT_HAND_OFF: Duration = Duration::from_millis(5);
    /// The longest time for hand-offs, because other clients cannot get the lock meanwhile.
    pub const LONGEST_HAND_OFF: Duration = Duration::from_secs(1);
    /// The longest time after a server's start in which no lock is granted, because a longer one is
    /// a mistake: no lock can be acquired meanwhile.
    pub const LONGEST_RESTART_GRACE: Duration = Duration::from_secs(24 * 60 * 60);
    /// The shortest presence of a waiter, because a waiter sends three attempts within this time.
    pub const SHORTEST_FAIR_PRESENCE: Duration = Duration::from_secs(1);
    /// The longest presence of a waiter, because a frozen waiter delays the others for this time.
    pub const LONGEST_FAIR_PRESENCE: Duration = Duration::from_secs(10 * 60);
    /// The longest timeout, because a longer one is a mistake: a call would hang for that long.
    pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(60 * 60);
    /// The default limit on the number of exclusive connections.
    pub const DEFAULT_POOL: u32 = 8;
    /// The default time for which an unused token counter is kept, so that tokens still grow if the
    /// server's clock is set back by at most this time. A counter takes about 150 bytes.
    pub const DEFAULT_TOKEN_RETENTION: Duration = Duration::from_secs(60 * 60);
    /// The shortest retention of token counters, because a store may drop a counter up to 100 s
    /// earlier.
    pub const SHORTEST_TOKEN_RETENTION: Duration = Duration::from_secs(3 * 60);
    /// The longest retention of token counters, because with a longer one the store would hardly
    /// ever free the memory of a counter.
    pub const LONGEST_TOKEN_RETENTION: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    /// The longest label of an owner, in bytes.
    pub const LONGEST_OWNER: usize = 128;
    /// The largest limit on the number of exclusive connections.
    pub const LARGEST_POOL: u32 = 10_000;

    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with the invalid part and the accepted values. Contains no
    /// password.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let mut config = Self::default();
        config.take_url(url, &Source::Direct("URL"))?;
        Ok(config)
    }

    /// Applies the address and the options of a URL.
    fn take_url(&mut self, url: &str, place: &Source) -> Result<(), Error> {
        let (address, options) = Address::parse(url).map_err(|wrong| place.refuse(&wrong))?;
        // Set before the options, which are checked together with the new address.
        self.address = address;
        let mut seen: Vec<String> = Vec::new();
        for (option, value) in options {
            if seen.contains(&option) {
                return Err(place.refuse(&format!("the option `{option}` is given twice")));
            }
            self.take(&option, &value, place)?;
            seen.push(option);
        }
        self.note_origin(option::URL, place);
        Ok(())
    }

    /// Applies an option by its name. An option from a TOML file or the environment is checked at
    /// once, so that the error can name the location; [`check`](Self::check) checks all others.
    fn take(&mut self, option: &str, value: &str, place: &Source) -> Result<(), Error> {
        self.set(option, value, place)
            .map_err(|wrong| place.refuse(&wrong))?;
        self.note_origin(option, place);
        match (place, self.complaint(option)) {
            (Source::Named(_), Some(wrong)) => Err(place.refuse(&wrong)),
            (Source::Direct(_), _) | (_, None) => Ok(()),
        }
    }

    /// Sets an option by its name in a URL.
    ///
    /// For options of a scheme, such as `tls_ca`, which have no setter, and for programs that read
    /// settings as text. [`check`](Self::check) refuses an invalid value of a setting.
    /// [`ClientBuilder::connect`](crate::ClientBuilder::connect) also refuses an invalid value of
    /// an option of the scheme, and an unknown name.
    #[must_use]
    pub fn with_option(mut self, name: &str, value: &str) -> Self {
        if let Err(wrong) = self.set(name, value, &Source::Direct("code")) {
            self.unreadable.push(wrong);
        }
        self
    }

    /// Sets the user, without the `%`-escapes of a URL.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.address.user = Some(Secret::new(user));
        self
    }

    /// Sets the password, without the `%`-escapes of a URL.
    #[must_use]
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.address.password = Some(Secret::new(password));
        self
    }

    /// Sets a file from which the password is read for each new connection, so that the password
    /// may change at run time. One line end at the end of the file is ignored. Default: none.
    #[must_use]
    pub fn with_password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.password_file = Some(path.into());
        self
    }

    /// Sets a provider of the credentials for each new connection: for tokens that expire and
    /// passwords that are rotated. Default: none; the user and the password of this configuration
    /// are used.
    #[must_use]
    pub fn with_credentials(mut self, provider: Arc<dyn CredentialsProvider>) -> Self {
        self.credentials = Some(Provider(provider));
        self
    }

    /// Sets the lease of watched locks: the longest time for which a lock stays busy after its
    /// holder has died. The watchdog renews the lock every third of the lease. Default: 30 s, as in
    /// Redisson.
    #[must_use]
    pub fn with_watchdog(mut self, lease: Duration) -> Self {
        self.watchdog = lease;
        self
    }

    /// Sets a fixed lease for locks that are acquired without an explicit lease. The watchdog does
    /// not renew such a lock: it ends after this time, unless it is released before. Wire formats
    /// without an owner require a fixed lease. Default: none; locks are watched.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how long a wait without a deadline, as in `lock()`, tolerates an unreachable store
    /// before it fails. Default: `watchdog`.
    #[must_use]
    pub fn with_outage_limit(mut self, limit: Duration) -> Self {
        self.outage_limit = Some(limit);
        self
    }

    /// Sets how long threads of this client may hand a lock to each other without a request to the
    /// store. After that time the next release lets other clients have the lock. Zero disables
    /// hand-offs. Default: 5 ms.
    #[must_use]
    pub fn with_hand_off(mut self, stretch: Duration) -> Self {
        self.hand_off = stretch;
        self
    }

    /// Sets the time after the start of a Redis server in which this client acquires no new locks
    /// there, because the server may have lost the locks that it granted before. Set it in all
    /// clients, to at least the longest lease of any client. Held locks are still renewed and
    /// released meanwhile. Default: zero, which turns this off. The memory store and quorums do not
    /// need this setting.
    #[must_use]
    pub fn with_restart_grace(mut self, grace: Duration) -> Self {
        self.restart_grace = grace;
        self
    }

    /// Sets the order in which mutexes and semaphores are granted. A store that supports only plain
    /// mutexes refuses fair ones. Default: any.
    #[must_use]
    pub fn with_order(mut self, order: LockOrder) -> Self {
        self.order = order;
        self
    }

    /// Sets how long a waiter that does not react may delay the others, in both
    /// [orders](LockOrder). If another client's release grants a mutex to the waiter, the lease is
    /// at most this time until the first renewal. A waiter for another kind of lock is only
    /// notified that it is next, and counts as present for this time after its last attempt; it
    /// sends three attempts within this time. Clients with different values can share a lock.
    /// Default: 3 s.
    #[must_use]
    pub fn with_fair_presence(mut self, presence: Duration) -> Self {
        self.fair_presence = presence;
        self
    }

    /// Sets the limit on the time to open a connection, including its handshake and authentication.
    /// Default: 2 s.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the limit on the time of one request to the store, without the wait for replicas.
    /// Default: 2 s.
    #[must_use]
    pub fn with_command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// Sets the maximum number of exclusive connections to each server. They are opened besides the
    /// shared connection when needed, mainly for cleanups, for renewals while a reply is late, and
    /// for confirmations by replicas. Default: 8.
    #[must_use]
    pub fn with_pool(mut self, connections: u32) -> Self {
        self.pool = connections;
        self
    }

    /// Sets the name of the connections on the server. Default: `distlock:` and the
    /// [owner](Self::with_owner), with `_` in place of each space and each character that is not
    /// printable ASCII; or `distlock` if the owner is `off`.
    #[must_use]
    pub fn with_client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = Some(name.into());
        self
    }

    /// Sets the label of this client as a holder, as in `billing-7`, by which a person can find the
    /// holder of a lock. It has 1 to [`LONGEST_OWNER`](Self::LONGEST_OWNER) bytes, without control
    /// characters. `off` means no label.
    ///
    /// Every program with access to the store can read the label; on Redis it is stored with a
    /// lock's first renewal. Default: `HOST:PROCESS:PROGRAM`, cut off at the maximum length.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the prefix of every key, which must not contain braces. Default: empty.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets whether waiting writers of this client keep new readers out, and whether readers of
    /// this client wait behind waiting writers. Default: [`WriterPriority::First`].
    #[must_use]
    pub fn with_writers(mut self, priority: WriterPriority) -> Self {
        self.writers = priority;
        self
    }

    /// Sets whether locks have fencing tokens, and whether their counters expire. Default:
    /// [`TokenPolicy::Expire`].
    #[must_use]
    pub fn with_tokens(mut self, tokens: TokenPolicy) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the retention of a lock's token counter after its last use.
    ///
    /// A new counter begins at the time of the server's clock, which may have been set back by at
    /// most the retention: otherwise tokens might repeat. The store needs about 150 bytes for each
    /// name used within that time. All clients of a quorum must have the same value. Default: an
    /// hour.
    #[must_use]
    pub fn with_token_retention(mut self, retention: Duration) -> Self {
        self.token_retention = retention;
        self
    }

    /// Sets how many replicas must confirm a grant, the maximum wait for the confirmations, and the
    /// reaction if too few replicas confirm: the options `replicas`, `replication_timeout`,
    /// `on_insufficient_replicas` and `unconfirmed_renewals` in one value. Default:
    /// [`Replication::off`].
    #[must_use]
    pub fn with_replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Returns the scheme: the part before `://`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.address.scheme
    }

    /// Returns the hosts, in the order of the URL.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.address.hosts
    }

    /// Returns the path after the hosts, without the first slash; empty if there is none.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.address.path
    }

    /// Returns the user of the URL or of [`with_user`](Self::with_user).
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.address.user.as_ref().map(Secret::reveal)
    }

    /// Returns the password of the URL or of [`with_password`](Self::with_password).
    #[must_use]
    pub fn password(&self) -> Option<&Secret> {
        self.address.password.as_ref()
    }

    /// Returns the value of [`with_password_file`](Self::with_password_file).
    #[must_use]
    pub fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }

    /// Returns the value of [`with_credentials`](Self::with_credentials).
    #[must_use]
    pub fn credentials(&self) -> Option<&Arc<dyn CredentialsProvider>> {
        self.credentials.as_ref().map(|Provider(provider)| provider)
    }

    /// Returns the value of [`with_lease`](Self::with_lease).
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Returns the value of [`with_watchdog`](Self::with_watchdog).
    #[must_use]
    pub fn watchdog(&self) -> Duration {
        self.watchdog
    }

    /// Returns the value of [`with_outage_limit`](Self::with_outage_limit).
    #[must_use]
    pub fn outage_limit(&self) -> Duration {
        self.outage_limit.unwrap_or(self.watchdog)
    }

    /// Returns the value of [`with_writers`](Self::with_writers).
    #[must_use]
    pub fn writers(&self) -> WriterPriority {
        self.writers
    }

    /// Returns the value of [`with_token_retention`](Self::with_token_retention).
    #[must_use]
    pub fn token_retention(&self) -> Duration {
        self.token_retention
    }

    /// Returns the value of [`with_hand_off`](Self::with_hand_off).
    #[must_use]
    pub fn hand_off(&self) -> Duration {
        self.hand_off
    }

    /// Returns the value of [`with_restart_grace`](Self::with_restart_grace).
    #[must_use]
    pub fn restart_grace(&self) -> Duration {
        self.restart_grace
    }

    /// Returns the value of [`with_order`](Self::with_order).
    #[must_use]
    pub fn order(&self) -> LockOrder {
        self.order
    }

    /// Returns the value of [`with_fair_presence`](Self::with_fair_presence).
    #[must_use]
    pub fn fair_presence(&self) -> Duration {
        self.fair_presence
    }

    /// Returns the value of [`with_connect_timeout`](Self::with_connect_timeout).
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Returns the value of [`with_command_timeout`](Self::with_command_timeout).
    #[must_use]
    pub fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// Returns the value of [`with_pool`](Self::with_pool).
    #[must_use]
    pub fn pool(&self) -> u32 {
        self.pool
    }

    /// Returns the value of [`with_client_name`](Self::with_client_name).
    #[must_use]
    pub fn client_name(&self) -> Cow<'_, str> {
        match (&self.client_name, self.owner()) {
            (Some(name), _) => Cow::Borrowed(name),
            (None, None) => Cow::Borrowed("distlock"),
            (None, Some(owner)) => Cow::Owned(format!("distlock:{}", label::printable(&owner))),
        }
    }

    /// Returns the value of [`with_owner`](Self::with_owner); `None` if it is `off`.
    #[must_use]
    pub fn owner(&self) -> Option<Cow<'_, str>> {
        match self.owner.as_deref() {
            Some(label::OFF) => None,
            Some(owner) => Some(Cow::Borrowed(owner)),
            None => Some(Cow::Owned(label::of_this_process(Self::LONGEST_OWNER))),
        }
    }

    /// Returns the value of [`with_prefix`](Self::with_prefix).
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the value of [`with_tokens`](Self::with_tokens).
    #[must_use]
    pub fn tokens(&self) -> TokenPolicy {
        self.tokens
    }

    /// Returns the value of [`with_replication`](Self::with_replication).
    #[must_use]
    pub fn replication(&self) -> Replication {
        self.replication
    }

    /// Returns the value of an option of the scheme, such as `tls_ca`, that is not a setting of
    /// this type.
    #[must_use]
    pub fn scheme_option(&self, name: &str) -> Option<&str> {
        self.scheme_options
            .get(name)
            .map(|option| option.value.reveal())
    }
}

/// Returns the default settings, with the URL `memory://`.
impl Default for Config {
    fn default() -> Self {
        Self {
            address: Address::memory(),
            password_file: None,
            credentials: None,
            watchdog: Self::DEFAULT_WATCHDOG,
            lease: None,
            outage_limit: None,
            hand_off: Self::DEFAULT_HAND_OFF,
            restart_grace: Duration::ZERO,
            order: LockOrder::default(),
            fair_presence: WAITER_PRESENCE,
            token_retention: Self::DEFAULT_TOKEN_RETENTION,
            connect_timeout: Self::DEFAULT_CONNECT_TIMEOUT,
            command_timeout: Self::DEFAULT_COMMAND_TIMEOUT,
            pool: Self::DEFAULT_POOL,
            client_name: None,
            owner: None,
            prefix: String::new(),
            writers: WriterPriority::default(),
            tokens: TokenPolicy::default(),
            replication: Replication::off(),
            scheme_options: BTreeMap::new(),
            unknown_variables: Vec::new(),
            reads_environment: false,
            unreadable: Vec::new(),
            origins: Origins::default(),
        }
    }
}

#[cfg(test)]
mod tests;
