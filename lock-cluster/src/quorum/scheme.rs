//! [`RedlockScheme`]: what `redlock://` stands for; and [`set_up`], which makes servers a quorum.

use super::backend::QuorumBackend;
use super::member::{Member, RedisMember};
use lock_core::backend::{Backend, Failure};
use lock_core::{
    ClientId, Clock, Config, Context, Error, Host, MemberResult, Outcome, Scheme, SystemClock,
};
use lock_redis::parts::{FORMAT, Format, NodeSettings, Terms, Voter};
use std::sync::Arc;
use std::time::Duration;

/// A quorum of independent Redis servers: `redlock://[user[:password]@]host[:port],host[:port],host[:port][/database]`,
/// and `redlocks://` for the same over TLS. User, password and database are the same on all of them.
///
/// - `max_lease=DURATION`: the longest lease, the same for all clients; a node that was started again does not vote for so
///   long. Default: a minute
/// - `node_timeout=DURATION`: how long a node has for an answer. Default: 500 ms
/// - `durable=yes`: all nodes run with `appendfsync always`, and so forget nothing when they are started again
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RedlockScheme {
    tls: bool,
}

/// The longest lease where nothing else is said.
const DEFAULT_MAX_LEASE: Duration = Duration::from_secs(60);
/// The port where the URL names none.
const PORT: u16 = 6379;

impl RedlockScheme {
    /// `redlock://`.
    #[must_use]
    pub fn new() -> Self {
        Self { tls: false }
    }

    /// `redlocks://`, with the options of `rediss://`.
    #[must_use]
    pub fn tls() -> Self {
        Self { tls: true }
    }
}

impl Scheme for RedlockScheme {
    fn names(&self) -> &[&str] {
        if self.tls { &["redlocks"] } else { &["redlock"] }
    }

    fn options(&self) -> &[&str] {
        const ALL: &[&str] = &[
            FORMAT,
            "durable",
            "max_lease",
            "node_timeout",
            "tls_ca",
            "tls_cert",
            "tls_key",
            "tls_name",
        ];
        if self.tls { ALL } else { &ALL[..4] }
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        let settings = Settings::read(config)?;
        let members = members(config, &settings, context)?;
        let members = members.into_iter().map(|member| member as Arc<dyn Member>).collect();
        Ok(Arc::new(QuorumBackend::of(members, settings.node_timeout, context)?))
    }
}

struct Settings {
    terms: Terms,
    node_timeout: Duration,
    database: u32,
}

impl Settings {
    fn read(config: &Config) -> Result<Self, Error> {
        let time = |name: &str, default| {
            option(config, name).map_or(Ok(default), |text| duration(name, text))
        };
        let max_lease = time("max_lease", DEFAULT_MAX_LEASE)?;
        let node_timeout = time("node_timeout", QuorumBackend::DEFAULT_NODE_TIMEOUT)?;
        let durable = match option(config, "durable") {
            None | Some("no") => false,
            Some("yes") => true,
            Some(other) => {
                let shown = other.escape_debug();
                return Err(Error::configuration(format!(
                    "`durable={shown}` is not `yes` or `no`"
                )));
            }
        };
        if config.watchdog() > max_lease {
            return Err(Error::configuration(format!(
                "watchdog={:?} is longer than max_lease={max_lease:?}, the longest that the quorum grants",
                config.watchdog()
            )));
        }
        if node_timeout > config.command_timeout() {
            return Err(Error::configuration(format!(
                "node_timeout={node_timeout:?} is longer than command_timeout={:?}, which is for all nodes together",
                config.command_timeout()
            )));
        }
        let database = match config.path() {
            "" => 0,
            path => path.parse().map_err(|_| {
                let shown = path.escape_debug();
                Error::configuration(format!("`/{shown}` in the URL is no database number"))
            })?,
        };
        Ok(Self { terms: Terms { max_lease, durable }, node_timeout, database })
    }
}

fn option<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
    config.extra().find(|(option, _)| *option == name).map(|(_, text)| text)
}

fn duration(name: &str, text: &str) -> Result<Duration, Error> {
    let wrong = |why: &str| {
        let shown = text.escape_debug();
        Error::configuration(format!("`{name}={shown}` is not {why}"))
    };
    let time = humantime::parse_duration(text)
        .map_err(|error| wrong(&format!("a duration, as in `30s` ({error})")))?;
    let is_whole = time.subsec_nanos() % 1_000_000 == 0 && !time.is_zero();
    if !is_whole || time > Config::LONGEST_TIMEOUT * 24 {
        return Err(wrong("between 1ms and 1day, in whole milliseconds"));
    }
    Ok(time)
}

/// The servers that the URL names.
fn members(
    config: &Config,
    settings: &Settings,
    context: &Context,
) -> Result<Vec<Arc<RedisMember>>, Error> {
    config.check()?;
    let hosts = config.hosts();
    if hosts.len() < QuorumBackend::FEWEST {
        return Err(Error::configuration(format!(
            "`{0}://` means at least {1} independent servers, as in `{0}://a:6379,b:6379,c:6379`, and the URL has {2}",
            config.scheme(),
            QuorumBackend::FEWEST,
            hosts.len()
        )));
    }
    let place = |host: &Host| (host.name.clone(), host.port.unwrap_or(PORT));
    if let Some(twice) = hosts
        .iter()
        .enumerate()
        .find(|(at, host)| hosts[..*at].iter().any(|other| place(other) == place(host)))
    {
        let (name, port) = place(twice.1);
        return Err(Error::configuration(format!(
            "{name}:{port} stands twice in the URL: its vote would count twice"
        )));
    }
    let nodes = NodeSettings::new(config, settings.database, context)?;
    let format = Arc::new(Format::of(config, context)?);
    if let Some(library) = format.wakes() {
        return Err(Error::configuration(format!(
            "`wakes={library}` in `format=`: that library has each of its locks on one server, and so can share none with a quorum; leave `wakes=` out"
        )));
    }
    let member = |host: &Host| {
        let (name, port) = place(host);
        let node = nodes.node_on(&name, port)?;
        let voter = Voter::new(node, Arc::clone(&format), settings.terms);
        Ok(Arc::new(RedisMember { voter, terms: settings.terms }))
    };
    hosts.iter().map(member).collect()
}

/// Makes the servers of a `redlock://` URL a quorum, which votes at once: an operator's word that this is a new one, and
/// that nobody holds a lock there. A server that is a node of it already is left as it is; if there is any, the others have
/// to wait for as long as the longest lease before they vote, as a node that was emptied has to.
///
/// A quorum that nobody set up sets itself up when it is first used, and does not vote for that long: from the servers alone
/// nobody can tell it from one that has forgotten everything.
///
/// # Blocking
///
/// Two command time-outs for each server, at most.
///
/// # Errors
///
/// [`Error::is_configuration`] if the URL makes no sense, or one of the servers cannot be a node of this quorum;
/// [`Error::is_unavailable`] if one cannot be asked. [`Error::members`] says what each came to. What was done then stays,
/// and it can be called again.
pub fn set_up(config: &Config) -> Result<(), Error> {
    let settings = Settings::read(config)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let context = Context::new(Arc::clone(&clock), ClientId::random());
    let members = members(config, &settings, &context)?;
    let by = || clock.now() + config.command_timeout();
    let looked = each(&members, |member| {
        let _run_id = member.voter.introduce(by())?;
        member.voter.is_marked(by())
    })?;
    let is_new = !looked.contains(&true);
    let pause = if is_new { Duration::ZERO } else { settings.terms.max_lease };
    each(&members, |member| member.voter.mark(pause, by()))?;
    Ok(())
}

/// Does something with each, and says what all came to if any of them failed.
fn each<T>(
    members: &[Arc<RedisMember>],
    question: impl Fn(&RedisMember) -> Result<T, Failure>,
) -> Result<Vec<T>, Error> {
    let mut done = Vec::new();
    let mut results = Vec::new();
    let mut kind = None;
    for member in members {
        let outcome = match question(member) {
            Ok(answer) => {
                done.push(answer);
                Outcome::Done
            }
            Err(failure) => {
                let error = failure.into_error();
                kind.get_or_insert(error.kind());
                Outcome::Failed(error)
            }
        };
        results.push(MemberResult::new(member.name(), outcome));
    }
    match kind {
        None => Ok(done),
        Some(kind) => {
            Err(Error::of_several(kind, "the quorum could not be set up", "answered", results))
        }
    }
}
