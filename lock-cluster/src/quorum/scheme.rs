//! [`RedlockScheme`]: what `redlock://` stands for; and [`set_up`], which makes servers a quorum.

use super::backend::{Quorum, QuorumBackend};
use super::member::Member;
use super::tally::majority;
use super::tending::begun;
use lock_core::backend::{Backend, Failure};
use lock_core::{
    ClientId, Clock, Config, Context, Error, Host, MemberOutcome, MemberResult, Scheme, SystemClock,
};
use lock_redis::parts::{Admission, FORMAT, Format, NodeSettings, Sight, Step, Terms, Voter};
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
        Ok(Arc::new(QuorumBackend::of(members, settings.node_timeout, context)?))
    }
}

struct Settings {
    max_lease: Duration,
    durable: bool,
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
        Ok(Self { max_lease, durable, node_timeout, database })
    }
}

fn option<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
    config.scheme_option(name)
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
fn members(config: &Config, settings: &Settings, context: &Context) -> Result<Vec<Member>, Error> {
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
    let format = Arc::new(Format::of(config)?);
    if let Some(library) = format.wakes() {
        return Err(Error::configuration(format!(
            "`wakes={library}` in `format=`: that library has each of its locks on one server, and so can share none with a quorum; leave `wakes=` out"
        )));
    }
    let member = |host: &Host| {
        let (name, port) = place(host);
        let node = nodes.node_on(&name, port)?;
        let Settings { max_lease, durable, .. } = *settings;
        let terms = Terms { max_lease, keep: format.keep(), durable };
        Ok(Member::Server(Box::new(Voter::new(node, Arc::clone(&format), terms))))
    };
    hosts.iter().map(member).collect()
}

/// Makes the servers of a `redlock://` URL a quorum, which votes at once: an operator's word that this is a new one, and
/// that no lock can have been held there within the last `max_lease`. Also where a client has begun it just now, and waits for
/// that long. Servers that were restarted empty look new, too.
///
/// If some of them vote already, the others become nodes of that quorum, and wait for as long as the longest lease before
/// they vote. If too few of the nodes are left for that, all of them begin anew, and wait for as long.
///
/// A quorum that nobody set up begins when it is first used, and does not vote for that long: from the servers alone
/// it cannot be told from one that has forgotten everything.
///
/// # Blocking
///
/// A few command time-outs for each server, at most.
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
    let quorum = QuorumBackend::of(members, config.command_timeout(), &context)?.0;
    let by = || clock.now() + config.command_timeout();
    let look = || each(&quorum, |_, voter| voter.look(by()));
    let mut sights = look()?;
    refuse_strangers(&quorum, &sights)?;
    let votes = |sight: &Sight| sight.marker.is_some() && !sight.is_new;
    let pause = if sights.iter().any(votes) {
        quorum.put_in_order(Duration::ZERO)?;
        sights = look()?;
        let view = |sight: &Sight| sight.marker.as_ref().map(|(_, node)| Arc::new(node.clone()));
        let views: Vec<_> = sights.iter().map(view).collect();
        let why_not = quorum.roll.why_not(&views, clock.now());
        let nodes =
            views.iter().zip(&why_not).filter(|(node, why)| node.is_some() && why.is_none());
        let count = nodes.count();
        if count == views.len() {
            return Ok(());
        }
        if count >= majority(views.len()) {
            let why = why_not.into_iter().flatten().next();
            return Err(why.unwrap_or_else(|| {
                Error::unavailable("one of the servers did not become a node: call it again")
            }));
        }
        settings.max_lease
    } else {
        Duration::ZERO
    };
    let names: Vec<_> = quorum.seats.iter().map(|seat| seat.core().member().name()).collect();
    let seen: Vec<_> = sights.iter().cloned().map(Some).collect();
    let mut agreed = begun(&seen, &names, &quorum.terms.expect("its nodes are servers"));
    let mut epoch = 1;
    if let (true, Some((begun, _))) =
        (pause.is_zero(), sights.iter().find_map(|sight| sight.marker.as_ref()))
    {
        // A client has begun it, and knows it by its id.
        epoch += u64::from(begun.members != agreed.members);
        agreed.quorum = Arc::clone(&begun.quorum);
    }
    each(&quorum, |at, voter| {
        let replaces = Arc::clone(&sights[at].version);
        let admission = Admission { pause, not_before: 0, replaces, chooses: true };
        let sight =
            voter.act(&sights[at].run_id, &Step::Record(epoch, &agreed, Some(&admission)), by())?;
        if sight.did {
            return Ok(());
        }
        let changed = format!("{} was changed by another client: call it again", voter.name());
        Err(Failure::Refused(Error::unavailable(changed)))
    })?;
    Ok(())
}

/// Refuses one server by two names, and nodes of different quorums.
fn refuse_strangers(quorum: &Quorum, sights: &[Sight]) -> Result<(), Error> {
    let name = |at: usize| quorum.seats[at].core().member().name();
    for (at, sight) in sights.iter().enumerate() {
        if let Some(twin) = sights[..at].iter().position(|other| other.run_id == sight.run_id) {
            return Err(Error::configuration(format!(
                "{} and {} are one and the same server (run_id {}): its vote would count twice",
                name(twin),
                name(at),
                sight.run_id
            )));
        }
        let of = |sight: &Sight| sight.marker.as_ref().map(|(_, node)| Arc::clone(&node.quorum));
        let other = |other: &Sight| of(other).is_some() && of(other) != of(sight);
        if of(sight).is_some()
            && let Some(before) = sights[..at].iter().position(other)
        {
            return Err(Error::configuration(format!(
                "{} and {} are nodes of different quorums: on those of a quorum that is given up, delete the key `distlock_quorum` \
                 (behind the prefix)",
                name(before),
                name(at)
            )));
        }
    }
    Ok(())
}

/// Does something with each, and says what all came to if any of them failed.
fn each<T>(
    quorum: &Quorum,
    question: impl Fn(usize, &Voter) -> Result<T, Failure>,
) -> Result<Vec<T>, Error> {
    let mut done = Vec::new();
    let mut results = Vec::new();
    let mut kind = None;
    for (at, seat) in quorum.seats.iter().enumerate() {
        let member = seat.core().member();
        let Some(voter) = member.voter() else { continue };
        let outcome = match question(at, voter) {
            Ok(answer) => {
                done.push(answer);
                MemberOutcome::Done
            }
            Err(failure) => {
                let error = failure.into_error();
                kind.get_or_insert(error.kind());
                MemberOutcome::Failed(error)
            }
        };
        results.push(MemberResult::new(member.name(), outcome));
    }
    match kind {
        None => Ok(done),
        Some(kind) => {
            Err(Error::from_members(kind, "the quorum could not be set up", "answered", results))
        }
    }
}
