//! [`Dialer`]: makes connections to the server that takes writes.

use super::history::{History, Identity, Verdict};
use super::settings::Settings;
use super::socket::{Connector, Deadline};
use super::{Connection, sqlstate};
use crate::numbers::duration;
use crate::schema;
use lock_core::backend::{Failure, contain, run_in_background};
use lock_core::{Clock, Context, Error, Moment, Notices, Signal, Woken};
use parking_lot::Mutex;
use postgres::config::{Config, SslMode, SslNegotiation};
use postgres::error::SqlState;
use postgres::types::Type;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Makes connections, and knows which server has the locks.
pub(crate) struct Dialer {
    settings: Settings,
    clock: Arc<dyn Clock>,
    notices: Notices,
    history: Mutex<History>,
    /// The number of changes of the server.
    generation: AtomicU64,
    /// The number of connections that have failed.
    failures: AtomicU64,
    /// The host to which the last connection was made.
    last_host: AtomicUsize,
    /// The longest lease of this client's locks that another server may still have.
    lease: Duration,
    /// The time for which nothing is granted after a change of the server.
    grace: Duration,
    paused_until: Mutex<Option<Moment>>,
}

/// What a new connection must be checked for, in one statement.
const IDENTITY: &str = "SELECT pg_is_in_recovery(), s.system_identifier, \
    CASE WHEN pg_is_in_recovery() THEN NULL \
    ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END, \
    current_setting('server_encoding'), \
    obj_description(to_regclass($1), 'pg_class'), \
    (extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) * 1000000)::bigint \
    FROM pg_control_system() s";

/// The time after which the system probes an idle connection, so that a firewall does not forget
/// it.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// What must be known before a connection to a host is made.
struct Prepared {
    addresses: Vec<IpAddr>,
    user: String,
    password: Option<String>,
}

impl Prepared {
    fn find(settings: &Settings, host: &str, port: u16) -> Result<Self, Error> {
        let (user, password) = settings.credentials(host, port)?;
        let found = (host, port).to_socket_addrs().map_err(|error| {
            Error::unavailable(format!("the host {host} has no address")).with_source(error)
        })?;
        Ok(Self {
            addresses: found.map(|it| it.ip()).collect(),
            user,
            password,
        })
    }
}

impl Dialer {
    pub(crate) fn new(
        settings: Settings,
        config: &lock_core::Config,
        context: &Context,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            clock: Arc::clone(&context.clock),
            notices: context.notices.clone(),
            history: Mutex::default(),
            generation: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_host: AtomicUsize::new(0),
            lease: config.lease().unwrap_or_default().max(config.watchdog()),
            grace: config.restart_grace(),
            paused_until: Mutex::default(),
        })
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    fn pause_until(&self, until: Moment) {
        let mut paused = self.paused_until.lock();
        *paused = Some(paused.map_or(until, |before| before.max(until)));
    }

    /// Waits for so long.
    pub(crate) fn pause_for(&self, time: Duration) {
        let unraised = Arc::new(Signal::new());
        let _due: Woken = self.clock.wait(&unraised, self.clock.now() + time);
    }

    /// Returns the time for which nothing is to be granted, because the server was replaced.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let until = (*self.paused_until.lock())?;
        Some(until.since(self.clock.now())).filter(|left| !left.is_zero())
    }

    /// Connects to the first host that takes writes, by `by`. Begins with the host that did the
    /// last time.
    pub(crate) fn dial(self: &Arc<Self>, by: Moment) -> Result<Connection, Failure> {
        self.dial_if(by, true)
    }

    /// Connects like [`dial`](Self::dial), but does not require the tables of distlock.
    pub(crate) fn dial_without_schema(self: &Arc<Self>, by: Moment) -> Result<Connection, Failure> {
        self.dial_if(by, false)
    }

    fn dial_if(self: &Arc<Self>, by: Moment, needs_schema: bool) -> Result<Connection, Failure> {
        let hosts = self.settings.hosts.len();
        let start = self.last_host.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for tried in 0..hosts {
            let at = (start + tried) % hosts;
            let now = self.clock.now();
            // Each host gets its part of the time that is left.
            let left = by.since(now) / u32::try_from(hosts - tried).unwrap_or(1);
            let by = now + left.min(self.settings.connect_timeout);
            match self.dial_host(at, by, needs_schema) {
                Ok(connection) => {
                    self.last_host.store(at, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(failure) => failures.push(failure),
            }
        }
        // An error that a person must mend says more than that other hosts are standbys.
        let worst = failures
            .iter()
            .position(|it| it.error().is_configuration())
            .unwrap_or(0);
        let others: Vec<_> = failures.iter().map(|it| it.error().to_string()).collect();
        let error = match &others[..] {
            [_] => failures.swap_remove(worst).into_error(),
            all => Error::new(failures[worst].error().kind(), all.join("; ")),
        };
        Err(Failure::NotSent(error))
    }

    fn dial_host(
        self: &Arc<Self>,
        at: usize,
        by: Moment,
        needs_schema: bool,
    ) -> Result<Connection, Failure> {
        let (host, port) = &self.settings.hosts[at];
        let server = format!("{host}:{port}");
        let not_sent = Failure::NotSent;
        let mut last = None;
        let prepared = self.prepare(host, *port, by).map_err(not_sent)?;
        for address in &prepared.addresses {
            let left = by.since(self.clock.now());
            if left.is_zero() {
                break;
            }
            let deadline = Deadline::new(Arc::clone(&self.clock), by);
            let mut config = self.config(host, *address, *port, &prepared, left);
            let noticed = Arc::clone(&deadline);
            config.notice_callback(move |notice| {
                if *notice.code() == SqlState::QUERY_CANCELED {
                    noticed.note_unconfirmed();
                }
            });
            let connector = Connector {
                deadline: Arc::clone(&deadline),
                tls: self.settings.tls.clone(),
            };
            // The crate panics if its runtime cannot be made, as without a free descriptor.
            let Some(connected) = contain(|| config.connect(connector.clone())) else {
                let why = "there is no descriptor or thread for a connection";
                last = Some(Failure::NotSent(Error::unavailable(why)));
                continue;
            };
            match connected {
                Ok(client) => {
                    let connection = Connection {
                        client,
                        deadline,
                        connector,
                        dialer: Arc::clone(self),
                        generation: self.generation(),
                        failures: self.failures(),
                        is_broken: false,
                        server,
                        _counted: self.notices.connected(),
                    };
                    return self.judge(connection, by, needs_schema);
                }
                Err(error) => last = Some(sqlstate::failure(&error, &server, false)),
            }
        }
        let late = || Error::unavailable(format!("{server} did not answer in time"));
        Err(not_sent(last.map_or_else(late, Failure::into_error)))
    }

    /// Finds the addresses of a host and the credentials for it, on another thread, because neither
    /// has a time-out.
    fn prepare(&self, host: &str, port: u16, by: Moment) -> Result<Prepared, Error> {
        let (done, prepared) = std::sync::mpsc::channel();
        let (settings, named) = (self.settings.clone(), host.to_owned());
        let start = run_in_background(move || {
            let _ended_wait = done.send(Prepared::find(&settings, &named, port));
        });
        start.map_err(|error| {
            Error::unavailable("there is no thread to look up a host").with_source(error)
        })?;
        let late = |_| {
            Error::unavailable(format!(
                "the address of {host}, or its password, was not found in time"
            ))
        };
        let found = prepared.recv_timeout(by.since(self.clock.now()));
        found.map_err(late)?
    }

    fn config(
        &self,
        host: &str,
        address: IpAddr,
        port: u16,
        prepared: &Prepared,
        left: Duration,
    ) -> Config {
        let Settings {
            database,
            client_name,
            options,
            ..
        } = &self.settings;
        let mut config = Config::new();
        config
            .host(host)
            .hostaddr(address)
            .port(port)
            .user(&prepared.user)
            .dbname(database)
            .application_name(client_name)
            .connect_timeout(left)
            .keepalives_idle(KEEPALIVE)
            // The socket's deadline is below TLS, so the connector negotiates it: see `socket`.
            .ssl_mode(SslMode::Require)
            .ssl_negotiation(SslNegotiation::Direct);
        if !options.is_empty() {
            config.options(options.trim());
        }
        if let Some(password) = &prepared.password {
            config.password(password);
        }
        config
    }

    /// Checks which server a new connection leads to, and whether it can be used.
    fn judge(
        &self,
        mut connection: Connection,
        by: Moment,
        needs_schema: bool,
    ) -> Result<Connection, Failure> {
        let table = format!("\"{}\".locks", self.settings.schema);
        let rows = connection.query(IDENTITY, &[(&table, Type::TEXT)], by);
        let rows = rows.map_err(|failure| Failure::NotSent(failure.into_error()))?;
        let server = connection.server.clone();
        let unusable = |why: &str| {
            Failure::NotSent(Error::unavailable(format!(
                "{server} cannot be used: {why}"
            )))
        };
        let row = rows.first().ok_or_else(|| unusable("it has no identity"))?;
        let timeline: Option<String> = row.get(2);
        let timeline = timeline.and_then(|it| u32::from_str_radix(&it, 16).ok());
        let Some(timeline) = timeline.filter(|_| !row.get::<_, bool>(0)) else {
            return Err(unusable("it is a standby, and takes no writes"));
        };
        let encoding: String = row.get(3);
        if encoding != "UTF8" {
            return Err(Failure::NotSent(Error::configuration(format!(
                "the database on {server} has the encoding {encoding}, and names of locks are \
                 UTF-8: use a database with the encoding UTF8"
            ))));
        }
        if needs_schema {
            let found: Option<String> = row.get(4);
            let checked = schema::check(found.as_deref(), &self.settings.schema, &server);
            checked.map_err(Failure::NotSent)?;
        }
        let system = row.get(1);
        let found = Identity { system, timeline };
        let mut history = self.history.lock();
        let now = self.clock.now();
        let runs_for = duration(row.get(5));
        self.pause_until(now + self.grace.saturating_sub(runs_for));
        match history.judge(found, now, self.lease) {
            Verdict::Same => connection.generation = self.generation(),
            Verdict::Changed { was, .. } => {
                connection.generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
                self.pause_until(now + self.grace);
                drop(history);
                let (was, is) = (was.to_string(), found.to_string());
                self.notices.server_changed(&server, &was, &is);
                self.notices.verify_held();
            }
            Verdict::Left { now } => {
                drop(history);
                let (now, found) = (now.to_string(), found.to_string());
                self.notices.server_refused(&server, &now, &found);
                return Err(unusable(&format!(
                    "it is ({found}), which was left for ({now})"
                )));
            }
        }
        Ok(connection)
    }
}
