//! [`Config`]: every setting in one place, filled by a URL, by a file, and by setters, in that order.

use crate::error::Error;
use crate::lease::Lease;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Every setting of a client.
///
/// One URL is enough: `scheme://user:password@host:port/path?option=value`. The same options can be set by name with
/// the setters here, or stand in a file that serde reads; what is set later wins over the URL. In a file the durations
/// are text, as in the URL (`"30s"`, `"1m 30s"`, `"500ms"`):
///
/// ```
/// use lock_core::Config;
///
/// let config: Config = toml::from_str(r#"
///     url = "memory://orders"
///     watchdog = "10s"
/// "#).map_err(|e| lock_core::Error::configuration(e.to_string()))?;
/// assert_eq!(config.watchdog(), std::time::Duration::from_secs(10));
/// # Ok::<(), lock_core::Error>(())
/// ```
///
/// [`fmt::Debug`] shows no password.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "BTreeMap<String, Scalar>")]
pub struct Config {
    address: Address,
    watchdog: Duration,
    outage_limit: Option<Duration>,
    connect_timeout: Duration,
    command_timeout: Duration,
    pool: u32,
    client_name: Option<String>,
    prefix: String,
    tokens: TokenPolicy,
    /// Options that no setting here is called by: for a third party's scheme, which names those that it takes.
    extra: BTreeMap<String, Secret>,
}

/// Whether, and for how long, a store keeps the counter that fencing tokens come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum TokenPolicy {
    /// Tokens, from a counter that the store drops a day after the time that it stands for, so that millions of lock
    /// names leave nothing behind. The default.
    #[default]
    Expire,
    /// Tokens, from a counter that stays: needed where Redisson's `RFencedLock` uses the same lock.
    Keep,
    /// No tokens: `fencing_token()` is `None`.
    Off,
}

/// Where a store is, as the URL says it.
#[derive(Clone, Debug)]
struct Address {
    scheme: String,
    user: Option<Secret>,
    password: Option<Secret>,
    hosts: Vec<Host>,
    path: String,
}

/// One host of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Host {
    /// The name or address, without the brackets of IPv6.
    pub name: String,
    /// The port, if there is one.
    pub port: Option<u16>,
}

/// Something that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text. Keep it out of logs and errors.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

/// The settings that have a name here, for the message that refuses another.
const OPTIONS: [&str; 8] = [
    "watchdog",
    "outage_limit",
    "connect_timeout",
    "command_timeout",
    "pool",
    "client_name",
    "prefix",
    "tokens",
];

impl Config {
    /// The default lease of a watched lock: Redisson's `lockWatchdogTimeout`.
    pub const DEFAULT_WATCHDOG: Duration = Duration::from_secs(30);
    /// The default bound on making a connection.
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
    /// The default bound on one command.
    pub const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
    /// The longest that one of the time-outs may be: a call that may take longer is one that hangs.
    pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(60 * 60);
    /// The default number of exclusive connections.
    pub const DEFAULT_POOL: u32 = 8;

    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] says which part cannot be read and what would be accepted. No password stands in it.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (address, options) = Address::parse(url)?;
        let mut config = Self {
            address,
            watchdog: Self::DEFAULT_WATCHDOG,
            outage_limit: None,
            connect_timeout: Self::DEFAULT_CONNECT_TIMEOUT,
            command_timeout: Self::DEFAULT_COMMAND_TIMEOUT,
            pool: Self::DEFAULT_POOL,
            client_name: None,
            prefix: String::new(),
            tokens: TokenPolicy::default(),
            extra: BTreeMap::new(),
        };
        let mut seen: Vec<String> = Vec::new();
        for (option, value) in options {
            if seen.contains(&option) {
                return Err(Error::configuration(format!("the option `{option}` is given twice")));
            }
            config.set(&option, &value)?;
            seen.push(option);
        }
        Ok(config)
    }

    /// Sets an option by its name in a URL.
    fn set(&mut self, option: &str, value: &str) -> Result<(), Error> {
        match option {
            "watchdog" => self.watchdog = duration(option, value)?,
            "outage_limit" => self.outage_limit = Some(duration(option, value)?),
            "connect_timeout" => self.connect_timeout = duration(option, value)?,
            "command_timeout" => self.command_timeout = duration(option, value)?,
            "pool" => {
                self.pool = value.parse().map_err(|_| {
                    Error::configuration(format!(
                        "`pool={value}` is not a number of connections, as in `pool=8`"
                    ))
                })?;
            }
            "client_name" => self.client_name = Some(value.to_owned()),
            "prefix" => self.prefix = value.to_owned(),
            "tokens" => {
                self.tokens = match value {
                    "expire" => TokenPolicy::Expire,
                    "keep" => TokenPolicy::Keep,
                    "off" => TokenPolicy::Off,
                    _ => {
                        return Err(Error::configuration(format!(
                            "`tokens={value}` is none of `expire`, `keep` and `off`"
                        )));
                    }
                };
            }
            other => {
                self.extra.insert(other.to_owned(), Secret::new(value));
            }
        }
        Ok(())
    }

    /// The lease of a watched lock, and so the longest that a lock outlives a holder that died. Renewed at a third of
    /// it. Default: 30 s, as Redisson has it.
    #[must_use]
    pub fn with_watchdog(mut self, lease: Duration) -> Self {
        self.watchdog = lease;
        self
    }

    /// For how long `lock()`, which waits without end, puts up with a store that cannot be reached before it says so.
    /// Default: one lease.
    #[must_use]
    pub fn with_outage_limit(mut self, limit: Duration) -> Self {
        self.outage_limit = Some(limit);
        self
    }

    /// How long making a connection may take, with everything that belongs to it (name, handshake, password). Default:
    /// 2 s.
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

    /// Whether locks carry fencing tokens, and how long their counter stays. Default: [`TokenPolicy::Expire`].
    #[must_use]
    pub fn with_tokens(mut self, tokens: TokenPolicy) -> Self {
        self.tokens = tokens;
        self
    }

    /// Looks at all settings together.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with every contradiction in it, each with both values.
    pub fn check(&self) -> Result<(), Error> {
        let mut wrong = Vec::new();
        if let Err(error) = Lease::watched(self.watchdog).time() {
            wrong.push(format!("watchdog {:?}: {error}", self.watchdog));
        }
        for (name, value) in
            [("connect_timeout", self.connect_timeout), ("command_timeout", self.command_timeout)]
        {
            if !(Duration::from_millis(1)..=Self::LONGEST_TIMEOUT).contains(&value) {
                wrong.push(format!(
                    "{name} {value:?} is not between 1ms and {:?}",
                    Self::LONGEST_TIMEOUT
                ));
            }
        }
        if self.outage_limit == Some(Duration::ZERO) {
            wrong.push("outage_limit 0s leaves no time to try: give it at least 1ms".to_owned());
        }
        if !(1..=10_000).contains(&self.pool) {
            wrong.push(format!("pool {} is not between 1 and 10000", self.pool));
        }
        let is_printable =
            |name: &str| !name.is_empty() && name.bytes().all(|b| (b'!'..=b'~').contains(&b));
        if !self.client_name.as_deref().is_none_or(is_printable) {
            wrong.push(
                "client_name must be printable ASCII without spaces, and not empty".to_owned(),
            );
        }
        if self.prefix.contains(['{', '}']) {
            wrong.push(format!(
                "prefix {:?} has a brace in it: that would move keys to another slot",
                self.prefix
            ));
        }
        if wrong.is_empty() { Ok(()) } else { Err(Error::configuration(wrong.join("; "))) }
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

    /// The user in the URL.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.address.user.as_ref().map(Secret::reveal)
    }

    /// The password in the URL.
    #[must_use]
    pub fn password(&self) -> Option<&Secret> {
        self.address.password.as_ref()
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

    /// Options that are none of this type's settings: a third party's scheme reads its own here.
    pub fn extra(&self) -> impl Iterator<Item = (&str, &str)> {
        self.extra.iter().map(|(option, value)| (option.as_str(), value.reveal()))
    }

    /// Refuses options that nobody reads. `also` are those that the scheme takes.
    pub(crate) fn refuse_unknown_options(&self, also: &[&str]) -> Result<(), Error> {
        let Some(unknown) = self.extra.keys().find(|option| !also.contains(&option.as_str()))
        else {
            return Ok(());
        };
        let mut known: Vec<_> =
            OPTIONS.iter().chain(also).map(|option| format!("`{option}`")).collect();
        known.sort_unstable();
        Err(Error::configuration(format!(
            "there is no option `{}` for `{}://`; there are {}",
            unknown.escape_debug(),
            self.scheme(),
            known.join(", ")
        )))
    }
}

/// The defaults, on `memory://`.
impl Default for Config {
    fn default() -> Self {
        Self::from_url("memory://").expect("a URL that this crate wrote")
    }
}

impl Address {
    /// Takes a URL apart into the address and its options.
    fn parse(url: &str) -> Result<(Self, Vec<(String, String)>), Error> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(Error::configuration(
                "the URL has no `scheme://`, as in `memory://` or `redis://127.0.0.1:6379`",
            ));
        };
        if scheme.is_empty()
            || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        {
            return Err(Error::configuration(
                "the URL's scheme may have letters, digits, `+`, `-` and `.` only",
            ));
        }
        if rest.contains('#') {
            return Err(Error::configuration(
                "the URL has a `#fragment`: nothing here reads one (in a password write %23)",
            ));
        }
        if rest.find(['/', '?']).is_some_and(|end| rest[end..].contains('@')) {
            // Nothing of it may be quoted: most likely it is a password.
            return Err(Error::configuration(
                "the URL has an `@` behind its hosts: in a user or password write `/` as %2F, `?` as %3F and `@` as %40, and anywhere else `@` as %40",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        let (user, password) = match userinfo.map(|info| info.split_once(':').unwrap_or((info, "")))
        {
            Some((user, password)) => (decoded("user", user)?, decoded("password", password)?),
            None => (None, None),
        };
        let hosts = match hosts {
            "" => Vec::new(),
            hosts => hosts.split(',').map(Host::parse).collect::<Result<_, _>>()?,
        };
        let options = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let path = decoded("path", path)?.map_or_else(String::new, |path| path.0);
        Ok((Self { scheme: scheme.to_ascii_lowercase(), user, password, hosts, path }, options))
    }
}

impl Host {
    fn parse(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::configuration(format!(
                "`{}` in the URL is not a host with an optional port, as in `example.org:6379` or `[::1]:6379`",
                text.escape_debug()
            ))
        };
        // The `url` crate knows what a host is; a scheme without meaning keeps its defaults for ports away.
        let url = url::Url::parse(&format!("host://{text}"))
            .map_err(|source| wrong().with_source(source))?;
        let name = match url.host() {
            Some(url::Host::Domain(name)) => name.to_owned(),
            Some(url::Host::Ipv4(address)) => address.to_string(),
            Some(url::Host::Ipv6(address)) => address.to_string(),
            None => return Err(wrong()),
        };
        if name.is_empty() || url.port() == Some(0) || text.ends_with(':') {
            return Err(wrong());
        }
        Ok(Self { name, port: url.port() })
    }
}

/// A percent-encoded part of a URL; `None` if it is empty.
fn decoded(part: &str, text: &str) -> Result<Option<Secret>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    match percent_encoding::percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(Some(Secret(text.into_owned()))),
        Err(_) => Err(Error::configuration(format!(
            "the {part} in the URL is not UTF-8 when its %-escapes are resolved"
        ))),
    }
}

fn duration(option: &str, value: &str) -> Result<Duration, Error> {
    humantime::parse_duration(value).map_err(|source| {
        Error::configuration(format!(
            "`{option}={}` is not a duration, as in `30s`, `500ms` or `1m 30s`",
            value.escape_debug()
        ))
        .with_source(source)
    })
}

/// A value in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Number(i64),
    Truth(bool),
}

impl TryFrom<BTreeMap<String, Scalar>> for Config {
    type Error = Error;

    fn try_from(mut fields: BTreeMap<String, Scalar>) -> Result<Self, Error> {
        let Some(Scalar::Text(url)) = fields.remove("url") else {
            return Err(Error::configuration(
                "there is no `url`, as in url = \"redis://127.0.0.1:6379\"",
            ));
        };
        let mut config = Self::from_url(&url)?;
        for (option, value) in fields {
            let value = match value {
                Scalar::Text(text) => text,
                Scalar::Number(number) => number.to_string(),
                Scalar::Truth(truth) => truth.to_string(),
            };
            config.set(&option, &value)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        match Config::from_url(url)
            .and_then(|config| config.check().and(config.refuse_unknown_options(&[])))
        {
            Ok(()) => panic!("{url} was taken"),
            Err(error) => {
                assert!(error.is_configuration(), "{url}: {error:?}");
                error.to_string()
            }
        }
    }

    #[test]
    fn a_url_is_taken_apart() {
        let config =
            Config::from_url("redis://me:p%40ss@a.example:7000,[::1]:7001,c/3?watchdog=10s&pool=2")
                .unwrap();
        assert_eq!((config.scheme(), config.path(), config.pool()), ("redis", "3", 2));
        assert_eq!(
            (config.user(), config.password().map(Secret::reveal)),
            (Some("me"), Some("p@ss"))
        );
        let hosts: Vec<_> =
            config.hosts().iter().map(|host| (host.name.as_str(), host.port)).collect();
        assert_eq!(hosts, [("a.example", Some(7000)), ("::1", Some(7001)), ("c", None)]);
        assert_eq!(config.watchdog(), Duration::from_secs(10));
        config.check().unwrap();
    }

    #[test]
    fn a_password_alone_is_enough_and_is_never_shown() {
        let config = Config::from_url("redis://:s3cret@localhost").unwrap();
        assert_eq!((config.user(), config.password().map(Secret::reveal)), (None, Some("s3cret")));
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn no_part_of_a_password_is_shown_wherever_it_ends_up() {
        for url in [
            "redis://user:s3cr/3t@host",
            "redis://user:s3cr?3t@host",
            "redis://u:12/s3cret@h",
            "redis://u:s3cr#t@h",
            "redis://u:%ff-s3cr@h",
            "redis://u:s3cr@h:port",
            "redis://h?password=s3cr",
            "s3cr@host",
            "redis://u:s3cr@h?pool=1&pool=2",
        ] {
            let shown = match Config::from_url(url) {
                Ok(config) => {
                    format!("{config:?} {config:#?} {:?}", config.refuse_unknown_options(&[]))
                }
                Err(error) => format!("{error} {error:?} {:?}", std::error::Error::source(&error)),
            };
            for part in ["s3cr", "3t@", "cret"] {
                assert!(!shown.contains(part), "{url}: {shown}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        assert!(refusal("localhost:6379").contains("scheme://"));
        assert!(refusal("redis://host:port").contains("host:port"));
        assert!(refusal("redis://host:0").contains("host:0"));
        assert!(refusal("redis://a,,b").contains("host"));
        assert!(refusal("memory://?watchdog=soon").contains("soon"));
        assert!(refusal("memory://?watchdog=1ms").contains("1ms"));
        assert!(refusal("memory://?watchdog=1000000000y").contains("too long"));
        assert!(refusal("memory://?command_timeout=0s").contains("command_timeout 0ns"));
        assert!(refusal("memory://?connect_timeout=2h").contains("3600s"));
        assert!(refusal("memory://?pool=many").contains("many"));
        assert!(refusal("memory://?pool=0").contains("pool 0"));
        assert!(refusal("memory://?wachdog=3s").contains("`wachdog`"));
        assert!(refusal("memory://?tokens=maybe").contains("maybe"));
        assert!(refusal("memory://?pool=1&pool=2").contains("twice"));
        assert!(refusal("memory://?prefix={").contains("brace"));
        assert!(refusal("redis://h/0#x").contains('#'));
    }

    #[test]
    fn a_file_fills_the_same_settings_and_wins_over_its_url() {
        let config: Config = toml::from_str(
            "url = 'memory://x?pool=3&watchdog=5s'\nwatchdog = '7s'\ntokens = 'keep'",
        )
        .unwrap();
        assert_eq!((config.pool(), config.watchdog()), (3, Duration::from_secs(7)));
        assert_eq!(config.tokens(), TokenPolicy::Keep);
        assert!(
            toml::from_str::<Config>("watchdog = '7s'").unwrap_err().to_string().contains("url")
        );
    }

    #[test]
    fn every_option_arrives_where_it_is_read_by_url_and_by_setter() {
        let by_url = Config::from_url(
            "memory://?watchdog=10s&outage_limit=11s&connect_timeout=12s&command_timeout=13s&pool=14\
             &client_name=me&prefix=p:&tokens=off",
        )
        .unwrap();
        let by_setter = Config::default()
            .with_watchdog(Duration::from_secs(10))
            .with_outage_limit(Duration::from_secs(11))
            .with_connect_timeout(Duration::from_secs(12))
            .with_command_timeout(Duration::from_secs(13))
            .with_pool(14)
            .with_client_name("me")
            .with_prefix("p:")
            .with_tokens(TokenPolicy::Off);
        for config in [by_url, by_setter] {
            config.check().unwrap();
            let durations = [
                config.watchdog(),
                config.outage_limit(),
                config.connect_timeout(),
                config.command_timeout(),
            ];
            assert_eq!(durations.map(|duration| duration.as_secs()), [10, 11, 12, 13]);
            assert_eq!((config.pool(), config.client_name()), (14, "me"));
            assert_eq!((config.prefix(), config.tokens()), ("p:", TokenPolicy::Off));
        }
    }

    #[test]
    fn an_outage_is_borne_for_one_lease_if_nothing_else_is_said() {
        let config = Config::default().with_watchdog(Duration::from_secs(7));
        assert_eq!(config.outage_limit(), Duration::from_secs(7));
    }

    #[test]
    fn a_name_for_the_connections_is_printable() {
        for name in ["", "two words", "ümlaut", "line\n"] {
            let refused = Config::default().with_client_name(name).check().unwrap_err();
            assert!(refused.to_string().contains("client_name"), "{name:?}: {refused}");
        }
    }
}
