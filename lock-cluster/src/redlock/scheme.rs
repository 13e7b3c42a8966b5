//! [`RedlockScheme`]: the URLs `redlock://` and `redlocks://`.

use super::backend::QuorumBackend;
use super::node::{QuorumNode, QuorumTerms};
use lock_core::backend::Backend;
use lock_core::{Config, Context, Error, Host, Scheme};
use lock_redis::servers::{Format, NodeSettings};
use std::sync::Arc;
use std::time::Duration;

/// A quorum of independent Redis servers:
/// `redlock://[user[:password]@]host[:port],host[:port],host[:port][/database]`, and `redlocks://`
/// over TLS. User, password and database apply to all servers.
///
/// - `max_lease=DURATION`: the longest lease, and the time for which a new or restarted node does
///   not vote; must be equal in all clients. Default: a minute
/// - `node_timeout=DURATION`: the time that each node has for an answer, at most the command
///   time-out. Default: 500 ms
/// - `durable=yes`: declares that all nodes run with `appendfsync always`, and lose no data in a
///   restart, so that a restarted node votes at once
/// - `format`, `tracking` and `joined`, as for `redis://`; `format` without `wakes=`
/// - over TLS ([`tls`](Self::tls)): `tls_ca`, `tls_cert`, `tls_key` and `tls_name`, as for
///   `rediss://`
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RedlockScheme {
    tls: bool,
}

const DURABLE: &str = "durable";
const MAX_LEASE: &str = "max_lease";
const NODE_TIMEOUT: &str = "node_timeout";

/// The default longest lease: only twice the default lease, because a restarted server may not vote
/// until this time has passed.
const DEFAULT_MAX_LEASE: Duration = Duration::from_secs(60);
/// The default port.
const PORT: u16 = 6379;

impl RedlockScheme {
    /// Returns the scheme `redlock://`.
    #[must_use]
    pub fn new() -> Self {
        Self { tls: false }
    }

    /// Returns the scheme `redlocks://`, with the TLS options of `rediss://`.
    #[must_use]
    pub fn tls() -> Self {
        Self { tls: true }
    }
}

impl Scheme for RedlockScheme {
    fn names(&self) -> &[&str] {
        if self.tls {
            &["redlocks"]
        } else {
            &["redlock"]
        }
    }

    fn options(&self) -> &[&str] {
        const ALL: &[&str] = &[
            NodeSettings::FORMAT,
            NodeSettings::TRACKING,
            NodeSettings::JOINED,
            DURABLE,
            MAX_LEASE,
            NODE_TIMEOUT,
            "tls_ca",
            "tls_cert",
            "tls_key",
            "tls_name",
        ];
        if self.tls { ALL } else { &ALL[..6] }
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        let options = UrlOptions::read(config)?;
        let nodes = nodes(config, &options, context)?;
        Ok(Arc::new(QuorumBackend::of(
            nodes,
            options.node_timeout,
            context,
        )?))
    }
}

/// The database in the URL, and the options that only quorums have.
pub(super) struct UrlOptions {
    pub(super) max_lease: Duration,
    durable: bool,
    node_timeout: Duration,
    database: u32,
}

impl UrlOptions {
    pub(super) fn read(config: &Config) -> Result<Self, Error> {
        let max_lease = duration(config, MAX_LEASE)?.unwrap_or(DEFAULT_MAX_LEASE);
        let node_timeout =
            duration(config, NODE_TIMEOUT)?.unwrap_or(QuorumBackend::DEFAULT_NODE_TIMEOUT);
        let durable = config.scheme_word(DURABLE, &[("no", false), ("yes", true)])?;
        if config.watchdog() > max_lease {
            return Err(Error::configuration(format!(
                "watchdog={:?} is longer than {MAX_LEASE}={max_lease:?}, the longest that the quorum \
                 grants",
                config.watchdog()
            )));
        }
        if node_timeout > config.command_timeout() {
            return Err(Error::configuration(format!(
                "{NODE_TIMEOUT}={node_timeout:?} is longer than command_timeout={:?}, which is for \
                 all nodes together",
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
        Ok(Self {
            max_lease,
            durable,
            node_timeout,
            database,
        })
    }
}

fn duration(config: &Config, name: &str) -> Result<Option<Duration>, Error> {
    let Some(time) = config.scheme_duration(name)? else {
        return Ok(None);
    };
    let is_whole = time.subsec_nanos() % 1_000_000 == 0 && !time.is_zero();
    if !is_whole || time > Config::LONGEST_TIMEOUT * 24 {
        let shown = config
            .scheme_option(name)
            .unwrap_or_default()
            .escape_debug();
        return Err(Error::configuration(format!(
            "`{name}={shown}` is not between 1ms and 1day, in whole milliseconds"
        )));
    }
    Ok(Some(time))
}

/// Returns the servers that the URL names.
pub(super) fn nodes(
    config: &Config,
    options: &UrlOptions,
    context: &Context,
) -> Result<Vec<QuorumNode>, Error> {
    config.check()?;
    let hosts = config.hosts();
    if hosts.len() < QuorumBackend::FEWEST {
        return Err(Error::configuration(format!(
            "`{0}://` means at least {1} independent servers, as in `{0}://a:6379,b:6379,c:6379`, \
             and the URL has {2}",
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
    let format = Format::of(config)?;
    format.leave_out_queues();
    if let Some(library) = format.wakes() {
        return Err(Error::configuration(format!(
            "`wakes={library}` in `format=`: that library has each of its locks on one server, and \
             so can share none with a quorum; leave `wakes=` out"
        )));
    }
    let UrlOptions {
        max_lease, durable, ..
    } = *options;
    let terms = QuorumTerms {
        max_lease,
        keep: format.keep(),
        durable,
    };
    let node_settings = NodeSettings::new(config, options.database, context, format)?;
    let node = |host: &Host| {
        let (name, port) = place(host);
        Ok(QuorumNode::of_server(
            node_settings.node_on(&name, port)?,
            terms,
        ))
    };
    hosts.iter().map(node).collect()
}
