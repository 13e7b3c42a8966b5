//! [`RedisScheme`]: the stores of `redis://`, `rediss://` and `redis+unix://`; [`SentinelScheme`]:
//! the stores of `redis+sentinel://` and `rediss+sentinel://`.

use crate::connection::{AddressMap, JOINED};
use crate::node::eviction::OPTION as EVICTION;
use crate::protocol::{Format, OPTION as FORMAT};
use crate::sentinel::SentinelBackend;
use crate::store::RedisStore;
use crate::url::options::{
    DB, SENTINEL_PASSWORD, SENTINEL_PASSWORD_FILE, SENTINEL_USER, TLS_CA, TLS_CERT, TLS_KEY,
    TLS_NAME,
};
use crate::url::{SENTINEL, SENTINEL_TLS, TLS, UNIX};
use crate::wakeups::TRACKING;
use lock_core::{Backend, Config, Context, Error, Scheme};
use std::sync::Arc;

/// One Redis server, reached over TCP, over TLS, or over a socket in the file system.
///
/// - [`new`](Self::new): `redis://[user[:password]@]host[:port][/database]`
/// - [`tls`](Self::tls): `rediss://`, otherwise the same; needs the cargo feature `tls`, and is
///   refused without it
/// - [`unix`](Self::unix): `redis+unix://[user[:password]@]/path/of/socket[?db=database]`
///
/// The option `format=` selects the wire format (`docs/INTEROP.md`).
///
/// Attempts and releases of all threads share one connection, on which a request is sent before
/// earlier requests are answered. Renewals have a connection of their own, so that other requests
/// cannot delay them, and up to three further connections while renewals hang. If no such
/// connection can be made, renewals that no replica must confirm use the shared one. Listings,
/// attempts that replicas must confirm or that need several commands, and the cleanup after a lost
/// answer borrow one of at most `pool` connections. One more connection receives releases and
/// reports of changes, from the first wait or renewal on. No connection is made before it is
/// needed.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RedisScheme(Transport);

#[derive(Clone, Copy, Debug, Default)]
enum Transport {
    #[default]
    Tcp,
    Tls,
    Unix,
}

/// The master that sentinels name.
///
/// - [`new`](Self::new):
///   `redis+sentinel://[user[:password]@]sentinel[:port][,..]/master[?db=database]`
/// - [`tls`](Self::tls): `rediss+sentinel://`, where the sentinels use TLS, too; needs the cargo
///   feature `tls`
///
/// The hosts are sentinels, as many as are known. More than half of them must belong to one
/// deployment: a sentinel of that deployment answers at the address, or no sentinel answers there,
/// and a sentinel of that deployment lists the address. User and password are those of the servers.
/// The sentinels have their own: `sentinel_user` and `sentinel_password`, or
/// `sentinel_password_file`. `address_map=ANNOUNCED=REAL,..` replaces addresses that sentinels
/// announce, both of servers and of other sentinels. The two sides are both `host:port`, or both
/// hosts.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SentinelScheme {
    tls: bool,
}

impl RedisScheme {
    /// Returns the scheme `redis://`.
    #[must_use]
    pub fn new() -> Self {
        Self(Transport::Tcp)
    }

    /// Returns the scheme `rediss://`. Options for the certificates:
    ///
    /// - `tls_ca=FILE`: certificates of the authorities to trust, instead of those that the system
    ///   trusts
    /// - `tls_cert=FILE` and `tls_key=FILE`: our own certificate and its key, for servers that ask
    ///   for one
    /// - `tls_name=HOST`: the host that the server's certificate must be for, if not the URL's host
    ///
    /// The files are PEM. They are read when the client is made, and again for each new connection,
    /// so that they may be changed while the program runs.
    #[must_use]
    pub fn tls() -> Self {
        Self(Transport::Tls)
    }

    /// Returns the scheme `redis+unix://`.
    #[must_use]
    pub fn unix() -> Self {
        Self(Transport::Unix)
    }
}

impl Scheme for RedisScheme {
    fn names(&self) -> &[&str] {
        match self.0 {
            Transport::Tcp => &["redis"],
            Transport::Tls => &[TLS],
            Transport::Unix => &[UNIX],
        }
    }

    fn options(&self) -> &[&str] {
        match self.0 {
            Transport::Tcp => &[FORMAT, EVICTION, TRACKING, JOINED],
            Transport::Tls => &[
                FORMAT, EVICTION, TRACKING, JOINED, TLS_CA, TLS_CERT, TLS_KEY, TLS_NAME,
            ],
            Transport::Unix => &[FORMAT, EVICTION, TRACKING, JOINED, DB],
        }
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        Format::open_store(config, context, None, |format| {
            RedisStore::standalone(config, context, format)
        })
    }
}

impl SentinelScheme {
    /// Returns the scheme `redis+sentinel://`.
    #[must_use]
    pub fn new() -> Self {
        Self { tls: false }
    }

    /// Returns the scheme `rediss+sentinel://`. The options of TLS are those of
    /// [`RedisScheme::tls`], and apply to all servers and sentinels.
    #[must_use]
    pub fn tls() -> Self {
        Self { tls: true }
    }
}

impl Scheme for SentinelScheme {
    fn names(&self) -> &[&str] {
        if self.tls {
            &[SENTINEL_TLS]
        } else {
            &[SENTINEL]
        }
    }

    fn options(&self) -> &[&str] {
        const OPTIONS: &[&str] = &[
            FORMAT,
            EVICTION,
            TRACKING,
            JOINED,
            AddressMap::OPTION,
            DB,
            SENTINEL_USER,
            SENTINEL_PASSWORD,
            SENTINEL_PASSWORD_FILE,
            TLS_CA,
            TLS_CERT,
            TLS_KEY,
            TLS_NAME,
        ];
        if self.tls { OPTIONS } else { &OPTIONS[..9] }
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        Format::open_store(config, context, None, |format| {
            SentinelBackend::sentinel(config, context, format)
        })
    }
}
