// The links of README.md, for docs.rs: of two definitions the first counts.
//! [defaults]: https://docs.rs/crate/distlock/latest/source/docs/DEFAULTS.md
//! [docs]: https://docs.rs/crate/distlock/latest/source/docs/README.md
//! [guarantees]: https://docs.rs/crate/distlock/latest/source/docs/GUARANTEES.md
//! [guarantees-fencing]: https://docs.rs/crate/distlock/latest/source/docs/GUARANTEES.md#fencing
//! [interop]: https://docs.rs/crate/distlock/latest/source/docs/INTEROP.md
//! [migrating]: https://docs.rs/crate/distlock/latest/source/docs/MIGRATING.md
//! [recipes-backends]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#switching-backends
//! [recipes-cron]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#a-cron-job-on-several-hosts
//! [recipes-ctrl-c]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#ctrl-c-and-sigterm
//! [recipes-loss]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#a-long-job-that-stops-when-the-lock-is-lost
//! [recipes-tests]: https://docs.rs/crate/distlock/latest/source/docs/RECIPES.md#testing-your-own-code
//!
#![doc = include_str!("../README.md")]
//!
//! # The map
//!
//! - [`connect`] makes a [`Client`] from a URL; [`builder`] makes one with settings, events, or a
//!   store of your own
//! - [`Client::mutex`] gives a [`Mutex`], held by threads and reentrant; [`Client::owned_mutex`] an
//!   [`OwnedMutex`], whose guards can be sent to other threads
//! - [`MultiLock`] makes several locks one, on whatever servers they are; [`MajorityLock`] needs
//!   most of them
//! - [`DistLock`] has the verbs (and the table from Java's names to these), [`LockOptions`] the
//!   wait and the lease
//! - [`LockGuard`] is the holding: its [fencing token](LockGuard::fencing_token), what is
//!   [left of it](LockGuard::remaining), and [the news of its loss](LockGuard::losses)
//! - [`backend`] is what a store must do, for those who write one; [`schemes`] is where it is
//!   plugged into URLs

#![forbid(unsafe_code)]

pub use lock_core::backend;
pub use lock_core::crossbeam_channel;
#[cfg(feature = "tracing")]
pub use lock_core::trace;
pub use lock_core::{
    Backend, Client, ClientBuilder, ClientId, Clock, Config, Context, Counters, Credentials,
    CredentialsProvider, DistLock, Error, ErrorKind, Event, EventHandler, FencingToken, GuardState,
    Host, InsufficientReplicas, Interrupt, Lease, LeaseTime, LockGuard, LockName, LockOptions,
    Loss, LossCause, MajorityLock, ManualClock, MemberOutcome, MemberResult, MemoryBackend,
    MemoryScheme, Moment, MultiLock, Mutex, Notices, Notification, OnInsufficientReplicas,
    OwnedGuard, OwnedMutex, OwnerId, OwnerText, Replicas, Replication, Scheme, Schemes, Secret,
    Signal, SystemClock, TokenPolicy, TokenRange, WarningKind, Woken,
};

// Their examples are compiled with those of the README.
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
/// | `redis://[user:password@]host[:port][/database]` | one Redis server (feature `redis`, on by default) |
/// | `rediss://[user:password@]host[:port][/database]` | the same over TLS (feature `tls`) |
/// | `redis+unix://[user:password@]/path/of/socket[?db=database]` | the same over its Unix socket |
/// | `redis+sentinel://[user:password@]host[:port][,..]/master[?db=database]` | the master that these sentinels name, from failover to failover; `rediss+sentinel://` over TLS |
/// | `redis+cluster://[user:password@]host[:port],host[:port],..` | Redis Cluster, by some of its nodes (feature `cluster`, on by default) |
/// | `rediss+cluster://[user:password@]host[:port],host[:port],..` | the same over TLS (feature `tls`) |
/// | `redlock://[user:password@]host[:port],host[:port],host[:port][/database]` | a quorum of independent Redis servers (feature `cluster`, on by default); see [`set_up_quorum`] |
/// | `redlocks://..` | the same over TLS |
///
/// A server on TLS is trusted if its certificate is for the host of the URL, and by an authority
/// that the system trusts. Options say otherwise: `tls_ca=FILE` (the authorities to trust instead),
/// `tls_name=HOST` (whom the certificate is for), and `tls_cert=FILE&tls_key=FILE` (our own
/// certificate, for servers that ask for one); the files are PEM.
///
/// Settings follow as options, as in `redis://127.0.0.1?watchdog=10s&pool=4`; see [`Config`] for
/// all of them.
///
/// # Blocking
///
/// Not at all: a store that is down is reported when it is first asked.
///
/// # Errors
///
/// [`Error::is_configuration`] says what is wrong with the URL and what would be accepted.
///
/// # Examples
///
/// ```
/// use distlock::DistLock;
///
/// let client = distlock::connect("memory://")?;
/// let lock = client.mutex("orders:42")?;
/// let guard = lock.lock()?;
/// guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
pub fn connect(url: &str) -> Result<Client, Error> {
    builder().url(url)?.connect()
}

/// Connects to the store that the environment variable `DISTLOCK_URL` names, with the settings that
/// stand in variables of their own, as in `DISTLOCK_WATCHDOG=10s`; see [`Config::from_env`].
///
/// # Errors
///
/// [`Error::is_configuration`] if `DISTLOCK_URL` is not set, and those of [`connect`].
pub fn connect_from_env() -> Result<Client, Error> {
    builder().config(Config::from_env()?).connect()
}

/// A builder that knows all the [`schemes`] that are built in.
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
    Client::builder().schemes(schemes())
}

#[cfg(feature = "cluster")]
pub use lock_cluster::{QuorumBackend, set_up as set_up_quorum};

/// The schemes that are built in. Add your own with [`Schemes::with`] and give them to the
/// [`builder`].
#[must_use]
pub fn schemes() -> Schemes {
    let schemes = Schemes::empty().with(MemoryScheme);
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
    schemes
}

#[cfg(all(test, feature = "redis", not(feature = "tls")))]
mod tests {
    #[test]
    fn a_tls_url_without_the_feature_is_refused_by_its_name() {
        for url in ["rediss://127.0.0.1", "rediss://127.0.0.1?tls_ca=x"] {
            let refused = crate::connect(url).unwrap_err();
            assert!(refused.is_configuration(), "{refused:?}");
            assert!(refused.to_string().contains("cargo feature `tls`"), "{refused:?}");
        }
    }
}
