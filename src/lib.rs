// The links of README.md, for docs.rs. If a link is defined twice, the first definition counts.
//! [backends]: https://docs.rs/crate/distlock/latest/source/docs/BACKENDS.md
//! [command]: https://docs.rs/crate/distlock/latest/source/docs/COMMAND.md
//! [contributing]: https://docs.rs/crate/distlock/latest/source/CONTRIBUTING.md
//! [defaults]: https://docs.rs/crate/distlock/latest/source/docs/DEFAULTS.md
//! [docs]: https://docs.rs/crate/distlock/latest/source/docs/README.md
//! [guarantees]: https://docs.rs/crate/distlock/latest/source/docs/GUARANTEES.md
//! [guarantees-blocking]: https://docs.rs/crate/distlock/latest/source/docs/GUARANTEES.md#how-long-a-call-blocks
//! [guarantees-fencing]: https://docs.rs/crate/distlock/latest/source/docs/GUARANTEES.md#fencing
//! [interop]: https://docs.rs/crate/distlock/latest/source/docs/INTEROP.md
//! [managed]: https://docs.rs/crate/distlock/latest/source/docs/MANAGED.md
//! [migrating-shedlock]: https://docs.rs/crate/distlock/latest/source/docs/MIGRATING.md#from-shedlock
//! [operations-alerts]: https://docs.rs/crate/distlock/latest/source/docs/OPERATIONS.md#alerts
//! [operations-memory]: https://docs.rs/crate/distlock/latest/source/docs/OPERATIONS.md#memory
//! [performance]: https://docs.rs/crate/distlock/latest/source/docs/PERFORMANCE.md
//! [recipes-backends]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#switching-backends
//! [recipes-cron]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#a-cron-job-on-several-hosts
//! [recipes-ctrl-c]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#ctrl-c-and-sigterm
//! [recipes-loss]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#a-long-job-that-stops-when-the-lock-is-lost
//! [recipes-pool]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#the-applications-own-pool
//! [recipes-tests]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#testing-your-own-code
//!
#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! - [`connect`] makes a [`Client`] from a URL; [`builder`] makes a client with settings, events,
//!   or another backend; `connect_file` (feature `toml`) makes the clients of a file that names
//!   backends and locks
//! - [`Client::mutex`] returns a [`Mutex`], which threads hold and which is reentrant;
//!   [`Client::owned_mutex`] returns an [`OwnedMutex`], whose guards can be sent to other threads
//! - [`MultiLock`] holds several locks as one, on any servers; [`MajorityLock`] holds a majority of
//!   its locks
//! - the methods of a lock need no import; [`DistLock`] is the trait of the locks that threads
//!   hold, and its documentation has a table of the methods in Java; [`LockOptions`] has the
//!   options
//! - [`LockGuard`] is a hold: its [fencing token](LockGuard::fencing_token), its [remaining
//!   lease](LockGuard::remaining), and [notification of its loss](LockGuard::losses)
//! - [`config`] has the types of settings, [`time`] the clocks, [`admin`] the requests of
//!   operators, [`backend`] the interface of a store; [`schemes`] lists the stores that a URL can
//!   name

#![forbid(unsafe_code)]

#[cfg(feature = "toml")]
pub use lock_core::ClientSet;
pub use lock_core::crossbeam_channel;
#[cfg(feature = "metrics")]
pub use lock_core::metrics;
#[cfg(feature = "tracing")]
pub use lock_core::trace;
pub use lock_core::{
    Client, ClientBuilder, Config, DistLock, Election, Error, ErrorKind, Event, EventHandler,
    FencingToken, GuardState, Interrupt, LeadershipChange, LockGuard, LockName, LockOptions, Loss,
    LossCause, MajorityLock, MemberOutcome, MemberResult, MultiLock, Mutex, Notification,
    OwnedGuard, OwnedMutex, ReadLock, RwLock, Semaphore, WriteLock,
};
pub use lock_core::{config, time};

/// The interface of a store, the schemes by which a URL names a store, and the store in memory. The
/// contract of a store is in the documentation of [`lock_core::backend`].
pub mod backend {
    pub use lock_core::backend::*;
    pub use lock_core::{
        Context, MemoryBackend, MemoryScheme, Notices, OpenConnection, Scheme, Schemes,
    };
}

/// The requests of operators to a store and a client: the held locks, the findings about a store,
/// counters, and the servers of a quorum.
pub mod admin {
    #[cfg(feature = "cluster")]
    pub use lock_cluster::{
        QuorumBackend, QuorumNodeStatus, QuorumVote, quorum_status, set_up as set_up_quorum,
    };
    pub use lock_core::admin::*;
    #[cfg(feature = "postgres")]
    pub use lock_postgres::{Initialised, init as init_postgres, schema_sql as postgres_schema};
}

#[cfg(feature = "redis-rs")]
pub use lock_redis::redis_rs;

// The examples in these documents are compiled with those of the README.
#[cfg(doctest)]
#[doc = include_str!("../docs/MIGRATING.md")]
struct Migrating;
#[cfg(doctest)]
#[doc = include_str!("../docs/RECIPES.md")]
struct Recipes;

/// Connects to the store that a URL names.
///
/// | URL | store |
/// |---|---|
/// | `memory://`, `memory://name` | this process's memory: one store for each name |
/// | `redis://HOST[/database]` | one Redis server |
/// | `rediss://HOST[/database]` | the same over TLS |
/// | `redis+unix://[user:password@]/path/of/socket[?db=database]` | the same over a Unix socket |
/// | `redis+sentinel://HOST,HOST,../master[?db=database]` | the master that these sentinels name |
/// | `rediss+sentinel://..` | the same over TLS |
/// | `redis+cluster://HOST,HOST,..` | Redis Cluster, by some of its nodes |
/// | `rediss+cluster://..` | the same over TLS |
/// | `redlock://HOST,HOST,HOST[/database]` | a quorum of Redis servers; see [`set_up_quorum`] |
/// | `redlocks://..` | the same over TLS |
/// | `postgres://HOST,HOST,../database` | PostgreSQL; see `admin::init_postgres` |
///
/// [`set_up_quorum`]: admin::set_up_quorum
///
/// `HOST` is `host[:port]`, the first one with `user:password@` before it if needed. `redis` URLs
/// need the feature `redis`, URLs of clusters and quorums the feature `cluster` (both on by
/// default), `postgres` URLs the feature `postgres`, and TLS the feature `tls`.
///
/// A TLS server is trusted if its certificate names the host that the client connects to, and is
/// signed by an authority that the system trusts. Options override this: `tls_ca=FILE` (the
/// authorities to trust instead), `tls_name=HOST` (the name in the certificate), and
/// `tls_cert=FILE&tls_key=FILE` (the client's certificate, for servers that require one). All files
/// are PEM.
///
/// Settings follow as options, as in `redis://127.0.0.1?watchdog=10s&pool=4`; see [`Config`].
///
/// # Blocking
///
/// Makes no connection: an unreachable store is reported by the first request. Blocks only to read
/// the files of passwords and of TLS that the URL names, for one connect timeout at most.
///
/// # Errors
///
/// [`Error::is_configuration`] if the URL is not accepted. The message names the fault and what is
/// accepted. Also the errors of [`ClientBuilder::connect`].
///
/// # Examples
///
/// ```
/// let client = distlock::connect("memory://")?;
/// let lock = client.mutex("orders:42")?;
/// let guard = lock.lock()?;
/// guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
pub fn connect(url: &str) -> Result<Client, Error> {
    builder().url(url)?.connect()
}

/// Connects to the store that the environment variable `DISTLOCK_URL` names, with settings from
/// variables such as `DISTLOCK_WATCHDOG=10s`; see [`Config::from_env`].
///
/// # Errors
///
/// [`Error::is_configuration`] if `DISTLOCK_URL` is not set or another variable is not accepted,
/// and the errors of [`connect`].
pub fn connect_from_env() -> Result<Client, Error> {
    builder().config(Config::from_env()?).connect()
}

/// Connects to the stores that a TOML file names, each when it is first used. Environment variables
/// override the file; see [`ConfigSet`](config::ConfigSet).
///
/// # Errors
///
/// The errors of [`from_file`](config::ConfigSet::from_file),
/// [`with_env`](config::ConfigSet::with_env) and [`ClientBuilder::connect_set`].
///
/// # Examples
///
/// ```no_run
/// let clients = distlock::connect_file("distlock.toml")?;
/// let guard = clients.mutex("nightly")?.lock()?; // where and how the file says
/// guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[cfg(feature = "toml")]
pub fn connect_file(path: impl AsRef<std::path::Path>) -> Result<ClientSet, Error> {
    builder().connect_set(config::ConfigSet::from_file(path)?.with_env()?)
}

/// Returns a builder with all built-in [`schemes`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// let client = distlock::builder()
///     .url("memory://")?
///     .configure(|config| config.with_watchdog(Duration::from_secs(10)))
///     .connect()?;
/// # let _ = client;
/// # Ok::<(), distlock::Error>(())
/// ```
pub fn builder() -> ClientBuilder {
    lock_core::builder().schemes(schemes())
}

/// Returns the built-in schemes. Add others with [`with`](backend::Schemes::with) and pass them to
/// the [`builder`].
#[must_use]
pub fn schemes() -> backend::Schemes {
    let schemes = backend::Schemes::empty().with(backend::MemoryScheme);
    #[cfg(feature = "redis")]
    let schemes = schemes
        .with(lock_redis::RedisScheme::new())
        .with(lock_redis::RedisScheme::tls())
        .with(lock_redis::RedisScheme::unix())
        .with(lock_redis::SentinelScheme::new())
        .with(lock_redis::SentinelScheme::tls());
    #[cfg(feature = "cluster")]
    let schemes = schemes
        .with(lock_cluster::ClusterScheme::new())
        .with(lock_cluster::ClusterScheme::tls())
        .with(lock_cluster::RedlockScheme::new())
        .with(lock_cluster::RedlockScheme::tls());
    #[cfg(feature = "postgres")]
    let schemes = schemes.with(lock_postgres::PostgresScheme::new());
    schemes
}

#[cfg(all(test, feature = "redis", not(feature = "tls")))]
mod tests {
    #[test]
    fn tls_url_without_the_feature_is_refused_with_its_name() {
        for url in ["rediss://127.0.0.1", "rediss://127.0.0.1?tls_ca=x"] {
            let refused = crate::connect(url).unwrap_err();
            assert!(refused.is_configuration(), "{refused:?}");
            assert!(
                refused.to_string().contains("cargo feature `tls`"),
                "{refused:?}"
            );
        }
    }
}
