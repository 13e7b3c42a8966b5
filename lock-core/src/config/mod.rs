//! [`Config`]: every setting in one place, filled by a URL, a file, the environment, and setters, in that order.

mod address;
mod check;
mod credentials;
mod environment;
mod file;
mod option;
mod secret;
mod similar;

pub use address::Host;
pub use credentials::{Credentials, CredentialsProvider};
pub(crate) use option::did_you_mean;
pub use secret::Secret;
use similar::similar;

use crate::error::Error;
use crate::replication::Replication;
use address::Address;
use credentials::Provider;
use file::Scalar;
use option::{SchemeOption, Source};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Every setting of a client.
///
/// One URL is enough: `scheme://user:password@host:port/path?option=value`. The same options can
/// stand in a file and in the environment, and be set by name with the setters here. What comes
/// later wins: first the defaults, then the URL ([`from_url`](Self::from_url)) or a file
/// (`from_file`, with the feature `toml`; its lines win over the options of its URL), then the
/// environment ([`with_env`](Self::with_env)), then the setters.
///
/// A program with a file of its own has a table in it that serde reads into this type, in any
/// format. Durations are text, as in the URL (`"30s"`, `"1m 30s"`, `"500ms"`):
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
/// let settings: Settings = toml::from_str(r#"
///     [locks]
///     url = "memory://orders"
///     watchdog = "10s"
/// "#).map_err(|e| distlock::Error::configuration(e.message()))?; // no more of it: as text it quotes a line, and its `Debug` the file, with the password
/// assert_eq!(settings.locks.watchdog(), std::time::Duration::from_secs(10));
/// # Ok::<(), distlock::Error>(())
/// ```
///
/// [`Debug`](std::fmt::Debug) shows no password.
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
    connect_timeout: Duration,
    command_timeout: Duration,
    pool: u32,
    client_name: Option<String>,
    prefix: String,
    tokens: TokenPolicy,
    token_retention: Duration,
    replication: Replication,
    /// Options that no setting here is called by: for a third party's scheme, which names those
    /// that it takes.
    scheme_options: BTreeMap<String, SchemeOption>,
    /// Environment variables that look like ours and are none.
    unknown_variables: Vec<String>,
    /// What was said about values that could not be read: a setter does not fail, so `check` says
    /// it.
    unreadable: Vec<String>,
}

/// Whether, and for how long, a store keeps the counter that fencing tokens come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum TokenPolicy {
    /// Tokens, from a counter that the store drops some time ([`Config::with_token_retention`]) after the time
    /// that it stands for, so that millions of lock names leave nothing behind. The default.
    #[default]
    Expire,
    /// Tokens, from a counter that stays: needed where Redisson's `RFencedLock` uses the same lock.
    Keep,
    /// No tokens: `fencing_token()` is `None`.
    Off,
}

impl Config {
    /// The default lease of a watched lock: Redisson's `lockWatchdogTimeout`.
    pub const DEFAULT_WATCHDOG: Duration = Duration::from_secs(30);
    /// The default bound on making a connection.
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
    /// The default bound on one command.
    pub const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
    /// The default time for which a lock passes from thread to thread of a client.
    pub const DEFAULT_HAND_OFF: Duration = Duration::from_millis(5);
    /// The longest such time: whoever waits elsewhere hears nothing of the lock while it lasts.
    pub const LONGEST_HAND_OFF: Duration = Duration::from_secs(1);
    /// The longest that one of the time-outs may be: a call that may take longer is one that hangs.
    pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(60 * 60);
    /// The default number of exclusive connections.
    pub const DEFAULT_POOL: u32 = 8;
    /// The default time for which a counter of tokens is kept.
    pub const DEFAULT_TOKEN_RETENTION: Duration = Duration::from_secs(60 * 60);
    /// The shortest such time: stores may take up to a minute of it off.
    pub const SHORTEST_TOKEN_RETENTION: Duration = Duration::from_secs(2 * 60);
    /// The longest such time.
    pub const LONGEST_TOKEN_RETENTION: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    /// The most exclusive connections.
    pub const LARGEST_POOL: u32 = 10_000;

    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] says which part cannot be read and what would be accepted. No
    /// password stands in it.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let mut config = Self::default();
        config.take_url(url, &Source::Here)?;
        Ok(config)
    }

    /// Takes the address and the options of a URL.
    fn take_url(&mut self, url: &str, place: &Source) -> Result<(), Error> {
        let (address, options) = Address::parse(url).map_err(|wrong| place.refuse(&wrong))?;
        let mut seen: Vec<String> = Vec::new();
        for (option, value) in options {
            if seen.contains(&option) {
                return Err(place.refuse(&format!("the option `{option}` is given twice")));
            }
            self.take(&option, &value, place)?;
            seen.push(option);
        }
        self.address = address;
        Ok(())
    }

    /// Takes an option by its name. One in a file or in the environment is checked on the spot, as
    /// long as it is known where it stands; the others with all the rest, by
    /// [`check`](Self::check).
    fn take(&mut self, option: &str, value: &str, place: &Source) -> Result<(), Error> {
        self.set(option, value, place).map_err(|wrong| place.refuse(&wrong))?;
        match (place, self.complaint(option)) {
            (Source::Named(_), Some(wrong)) => Err(place.refuse(&wrong)),
            (Source::Here, _) | (_, None) => Ok(()),
        }
    }

    /// Sets an option by its name in a URL: for those of a scheme, which have no setter of their
    /// own (`tls_ca`), and for programs that are given settings as text. A name that neither this
    /// type nor the scheme knows is refused by
    /// [`ClientBuilder::connect`](crate::ClientBuilder::connect), a value that cannot be read by
    /// [`check`](Self::check).
    #[must_use]
    pub fn with_option(mut self, name: &str, value: &str) -> Self {
        if let Err(wrong) = self.set(name, value, &Source::Here) {
            self.unreadable.push(wrong);
        }
        self
    }

    /// The user that the store is to know us as. As it is, without the `%`-escapes of a URL.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.address.user = Some(Secret::new(user));
        self
    }

    /// The password. As it is, without the `%`-escapes of a URL.
    #[must_use]
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.address.password = Some(Secret::new(password));
        self
    }

    /// A file that the password is read from at each new connection, so that it may be changed
    /// while the program runs. One line end at its end is not of the password. Default: none; the
    /// password stands in the URL, if there is one.
    #[must_use]
    pub fn with_password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.password_file = Some(path.into());
        self
    }

    /// The provider of the credentials, asked at each new connection: for tokens that expire, and
    /// passwords that are rotated. Default: none; user and password are those of the URL.
    #[must_use]
    pub fn with_credentials(mut self, provider: Arc<dyn CredentialsProvider>) -> Self {
        self.credentials = Some(Provider(provider));
        self
    }

    /// The lease of a watched lock, and so the longest that a lock outlives a holder that died.
    /// Renewed at a third of it. Default: 30 s, as Redisson has it.
    #[must_use]
    pub fn with_watchdog(mut self, lease: Duration) -> Self {
        self.watchdog = lease;
        self
    }

    /// A fixed lease for locks that are taken without one: the watchdog leaves those alone, and
    /// each ends after this time unless it is given back before. Formats that do not know who holds
    /// a lock have no other. Default: none, locks are watched.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// For how long `lock()`, which waits without end, puts up with a store that cannot be reached
    /// before it says so. Default: one lease.
    #[must_use]
    pub fn with_outage_limit(mut self, limit: Duration) -> Self {
        self.outage_limit = Some(limit);
        self
    }

    /// For how long at a stretch a lock passes from thread to thread of this client, without a word
    /// to the store, before others have a go at it; zero: it never does. Default: 5 ms.
    #[must_use]
    pub fn with_hand_off(mut self, stretch: Duration) -> Self {
        self.hand_off = stretch;
        self
    }

    /// How long making a connection may take, with everything that belongs to it (name, handshake,
    /// password). Default: 2 s.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long one request to the store may take. Default: 2 s.
    #[must_use]
    pub fn with_command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// How many exclusive connections there may be at most. Default: 8.
    #[must_use]
    pub fn with_pool(mut self, connections: u32) -> Self {
        self.pool = connections;
        self
    }

    /// What the connections call themselves on the server. Default: `distlock`.
    #[must_use]
    pub fn with_client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = Some(name.into());
        self
    }

    /// What every key begins with. Default: nothing.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Whether locks carry fencing tokens, and how long their counter stays. Default:
    /// [`TokenPolicy::Expire`].
    #[must_use]
    pub fn with_tokens(mut self, tokens: TokenPolicy) -> Self {
        self.tokens = tokens;
        self
    }

    /// For how long the counter of a lock's tokens is kept after the time that it stands for.
    /// Tokens go on growing when it is gone, by the server's clock: this is by how much that may be
    /// set back meanwhile. It costs about 150 bytes for each name that was used within that time.
    /// The same for all clients of a quorum. Default: an hour.
    #[must_use]
    pub fn with_token_retention(mut self, retention: Duration) -> Self {
        self.token_retention = retention;
        self
    }

    /// How many replicas must confirm a grant before it counts, for how long they are waited for,
    /// and what is done if they do not: the settings `replicas`, `replication_timeout` and
    /// `on_insufficient_replicas` in one. Default: [`Replication::off`].
    #[must_use]
    pub fn with_replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// What stands before `://`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.address.scheme
    }

    /// The hosts, in the order of the URL.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.address.hosts
    }

    /// What stands behind the hosts, without the first slash; empty if there is nothing.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.address.path
    }

    /// The user, in the URL or by [`with_user`](Self::with_user).
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.address.user.as_ref().map(Secret::reveal)
    }

    /// The password, in the URL or by [`with_password`](Self::with_password).
    #[must_use]
    pub fn password(&self) -> Option<&Secret> {
        self.address.password.as_ref()
    }

    /// See [`with_password_file`](Self::with_password_file).
    #[must_use]
    pub fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }

    /// See [`with_credentials`](Self::with_credentials).
    #[must_use]
    pub fn credentials(&self) -> Option<&Arc<dyn CredentialsProvider>> {
        self.credentials.as_ref().map(|Provider(provider)| provider)
    }

    /// See [`with_lease`](Self::with_lease).
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// See [`with_watchdog`](Self::with_watchdog).
    #[must_use]
    pub fn watchdog(&self) -> Duration {
        self.watchdog
    }

    /// See [`with_outage_limit`](Self::with_outage_limit).
    #[must_use]
    pub fn outage_limit(&self) -> Duration {
        self.outage_limit.unwrap_or(self.watchdog)
    }

    /// See [`with_token_retention`](Self::with_token_retention).
    #[must_use]
    pub fn token_retention(&self) -> Duration {
        self.token_retention
    }

    /// See [`with_hand_off`](Self::with_hand_off).
    #[must_use]
    pub fn hand_off(&self) -> Duration {
        self.hand_off
    }

    /// See [`with_connect_timeout`](Self::with_connect_timeout).
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// See [`with_command_timeout`](Self::with_command_timeout).
    #[must_use]
    pub fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// See [`with_pool`](Self::with_pool).
    #[must_use]
    pub fn pool(&self) -> u32 {
        self.pool
    }

    /// See [`with_client_name`](Self::with_client_name).
    #[must_use]
    pub fn client_name(&self) -> &str {
        self.client_name.as_deref().unwrap_or("distlock")
    }

    /// See [`with_prefix`](Self::with_prefix).
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// See [`with_tokens`](Self::with_tokens).
    #[must_use]
    pub fn tokens(&self) -> TokenPolicy {
        self.tokens
    }

    /// See [`with_replication`](Self::with_replication).
    #[must_use]
    pub fn replication(&self) -> Replication {
        self.replication
    }

    /// The value of an option that is a scheme's own, such as `tls_ca`, and no setting of this type.
    #[must_use]
    pub fn scheme_option(&self, name: &str) -> Option<&str> {
        self.scheme_options.get(name).map(|option| option.value.reveal())
    }
}

/// The defaults, on `memory://`.
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
            token_retention: Self::DEFAULT_TOKEN_RETENTION,
            connect_timeout: Self::DEFAULT_CONNECT_TIMEOUT,
            command_timeout: Self::DEFAULT_COMMAND_TIMEOUT,
            pool: Self::DEFAULT_POOL,
            client_name: None,
            prefix: String::new(),
            tokens: TokenPolicy::default(),
            replication: Replication::off(),
            scheme_options: BTreeMap::new(),
            unknown_variables: Vec::new(),
            unreadable: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
