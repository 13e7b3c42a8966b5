//! Locks over the application's own connections by the crates `redis` (version 1) and `r2d2`
//! (version 0.8): [`RedisPool`], and [`config_of`] for those who only want to take over their
//! settings.

pub use r2d2;
pub use redis;

use crate::RedisScheme;
use crate::connection::JOINED;
use crate::connection::LentPool;
use crate::node::NodeSettings;
use crate::node::eviction::OPTION as EVICTION;
use crate::protocol::{Format, OPTION as FORMAT};
use crate::store::RedisStore;
use crate::url::{self, UNIX};
use lock_core::{Backend, Client, ClientBuilder, Config, Context, Error, Scheme, Schemes};
use r2d2::Pool;
use redis::{ConnectionAddr, IntoConnectionInfo};
use std::sync::Arc;
use std::time::Duration;

/// The scheme of clients over a pool. The pool itself names the server.
const SCHEME: &str = "redis+pool";

/// The fewest connections of a pool, because one is kept for renewals.
const FEWEST: u32 = 2;

/// The application's own pool of connections, as a store of locks.
///
/// A pool of connections with `test_on_check_out(true)`, the default of `r2d2`, sends `PING` before
/// each use, and on a server that hangs this wait has no bound. So each request is then made on a
/// thread of its own, which costs some ten microseconds besides the `PING`. Prefer
/// `test_on_check_out(false)`.
///
/// - One connection for each client is taken with the first lock and kept for renewals, so that
///   held locks are renewed while the application uses all others. If it breaks just then, the
///   application may take its place. All other requests borrow a connection for one round trip.
/// - Locks are in the database that the URL of the pool's client names. Each request selects it, so
///   a connection on which the application has selected another one goes back in this one.
/// - A connection on which anything was late, cut or half read is closed and replaced in the pool.
/// - Connections of a pool may be older than a change of the server behind its address. With
///   [`with_waking`](Self::with_waking), a connection of our own
///   confirms each change. Without, all idle connections are closed at a change, but one that the
///   application uses just then, and gives back more than a lease later, can lead back to the
///   server that was left: set the pool's `max_lifetime`.
/// - Without [`with_waking`](Self::with_waking) waiters poll every 100 ms. Then fair mutexes and
///   fair read-write locks are refused, and a waiter or writer may starve beside clients that are
///   notified.
/// - After a failed attempt to connect, `r2d2` pauses for up to half of the pool's
///   `connection_timeout`, for 15 s by default. A lock whose lease ends meanwhile is lost: set it
///   to about a second.
/// - Several clients over one pool keep one connection each.
/// - Losses are noticed at the next renewal, because no changes of keys are reported.
///
/// # Examples
///
/// ```no_run
/// # extern crate lock_redis as distlock;
/// use distlock::redis_rs::{RedisPool, r2d2, redis};
/// use std::time::Duration;
///
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let pool = r2d2::Pool::builder()
///     .test_on_check_out(false)
///     .connection_timeout(Duration::from_secs(1))
///     .build(client.clone())?;
/// let locks = RedisPool::new(pool.clone()).with_waking(&client)?.connect()?;
/// let guard = locks.mutex("orders:42")?.lock()?;
/// redis::cmd("INCR").arg("orders").exec(&mut *pool.get()?)?;
/// guard.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedisPool {
    pool: LentPool,
    /// The server, if it is known.
    server: Option<Config>,
}

impl RedisPool {
    /// Makes a store of this pool.
    #[must_use]
    pub fn new(pool: Pool<redis::Client>) -> Self {
        Self {
            pool: LentPool::new(pool),
            server: None,
        }
    }

    /// Wakes waiters by the messages about releases, which one connection of our own to the server
    /// of `client` receives. Its settings are those of the client. If the client uses certificates
    /// of its own, name them by the options `tls_ca=`, `tls_cert=` and `tls_key=`.
    ///
    /// # Errors
    ///
    /// As [`config_of`].
    pub fn with_waking(self, client: &redis::Client) -> Result<Self, Error> {
        let server = config_of(client.get_connection_info().clone())?;
        Ok(Self {
            server: Some(server),
            ..self
        })
    }

    /// Sets the time-outs with which connections go back to the pool, if the application's
    /// connections have time-outs: those that they had cannot be read. The default is none.
    #[must_use]
    pub fn with_timeouts(self, read: Option<Duration>, write: Option<Duration>) -> Self {
        Self {
            pool: self.pool.with_timeouts(read, write),
            ..self
        }
    }

    /// Returns a builder of a client, for settings.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the pool has fewer than two connections.
    pub fn builder(self) -> Result<ClientBuilder, Error> {
        if self.pool.size() < FEWEST {
            return Err(Error::configuration(
                "the application's pool has one connection, which renewals need for themselves: \
                 set its `max_size` to at least 2",
            ));
        }
        let schemes = Schemes::empty().with(self);
        lock_core::builder()
            .schemes(schemes)
            .url(&format!("{SCHEME}://"))
    }

    /// Returns a client with the default settings.
    ///
    /// # Errors
    ///
    /// As [`builder`](Self::builder).
    pub fn connect(self) -> Result<Client, Error> {
        self.builder()?.connect()
    }
}

impl Scheme for RedisPool {
    fn names(&self) -> &[&str] {
        &[SCHEME]
    }

    fn options(&self) -> &[&str] {
        use crate::url::options::{TLS_CA, TLS_CERT, TLS_KEY, TLS_NAME};
        &[
            FORMAT, EVICTION, JOINED, TLS_CA, TLS_CERT, TLS_KEY, TLS_NAME,
        ]
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        let server = match &self.server {
            Some(server) => Some((server, url::address(server)?)),
            None => None,
        };
        let database = server.as_ref().map_or(0, |(_, (_, database))| *database);
        Format::open_store(config, context, None, |format| {
            let settings = NodeSettings::new(config, database, context, format)?;
            let settings = match &server {
                Some((server, _)) => settings.with_login_of(server, config)?,
                None => settings,
            };
            let place = server.as_ref().map(|(_, (place, _))| place.clone());
            let node = settings.lent(place, self.pool.clone())?;
            Ok(RedisStore::with_topology(Arc::new(node)))
        })
    }
}

/// Returns a builder of a client with connections of its own to the server of a client of the crate
/// `redis`: that client has no time-outs that could bound a request. For settings and errors see
/// [`config_of`].
///
/// # Errors
///
/// As [`config_of`].
///
/// # Examples
///
/// ```no_run
/// # extern crate lock_redis as distlock;
/// use distlock::redis_rs::{of_client, redis};
///
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let locks = of_client(&client)?.connect()?;
/// locks.mutex("orders:42")?.lock()?.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn of_client(client: &redis::Client) -> Result<ClientBuilder, Error> {
    let schemes = Schemes::empty()
        .with(RedisScheme::new())
        .with(RedisScheme::tls())
        .with(RedisScheme::unix());
    let config = config_of(client.get_connection_info().clone())?;
    Ok(lock_core::builder().schemes(schemes).config(config))
}

/// Returns the settings of distlock's own connections to the server that a client of the crate
/// `redis` is for: a URL in any form of that crate, or its `ConnectionInfo`.
///
/// Server, database, user and password are taken over; certificates cannot be read and are to be
/// named by options of [`Config::with_option`].
///
/// # Errors
///
/// [`Error::is_configuration`] if that crate refuses the URL; and for `#insecure`, because a server
/// whose certificate is not checked may be anyone's, and grant what another one has granted.
///
/// # Examples
///
/// ```
/// use lock_redis::redis_rs::config_of;
///
/// let config = config_of("unix:///run/redis.sock?db=1")?;
/// assert_eq!(config.scheme(), "redis+unix");
/// assert!(config_of("rediss://example.org/#insecure").is_err());
/// # Ok::<(), lock_core::Error>(())
/// ```
pub fn config_of(info: impl IntoConnectionInfo) -> Result<Config, Error> {
    let info = info.into_connection_info().map_err(|error| {
        Error::configuration("the crate `redis` refuses these settings").with_source(error)
    })?;
    let settings = info.redis_settings();
    let database = settings.db();
    let url = match info.addr() {
        ConnectionAddr::Tcp(host, port) => tcp("redis", host, *port, database),
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return Err(Error::configuration(
                "`#insecure` is refused: without a check of the certificate, a lock may be granted \
                 by another server; name its authority by `tls_ca=FILE`",
            ));
        }
        ConnectionAddr::TcpTls { host, port, .. } => tcp("rediss", host, *port, database),
        ConnectionAddr::Unix(path) => {
            let path = path.to_str().ok_or_else(|| {
                Error::configuration("the path of the socket is not UTF-8: use a link to it")
            })?;
            format!("{UNIX}://{}?db={database}", encoded(path))
        }
        _ => {
            return Err(Error::configuration(
                "this kind of address of the crate `redis` is not known",
            ));
        }
    };
    let mut config = Config::from_url(&url)?;
    if let Some(user) = settings.username() {
        config = config.with_user(user);
    }
    if let Some(password) = settings.password() {
        config = config.with_password(password);
    }
    Ok(config)
}

fn tcp(scheme: &str, host: &str, port: u16, database: i64) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("{scheme}://[{host}]:{port}/{database}"),
        false => format!("{scheme}://{host}:{port}/{database}"),
    }
}

/// Encodes a path for a URL.
fn encoded(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    path.bytes()
        .map(|byte| match is_plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}
