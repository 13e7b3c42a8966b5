//! [`ClusterScheme`]: the URLs `redis+cluster://` and `rediss+cluster://`.

use super::cluster_map::{Channels, ClusterMap};
use lock_core::{Backend, Config, Context, Error, Scheme};
use lock_redis::servers::{AddressMap, Format, NodeSettings};
use std::sync::Arc;

/// The scheme of a Redis Cluster. The URL has the addresses of some nodes, which list the others:
/// `redis+cluster://[user[:password]@]host[:port],host[:port],..`.
///
/// - `address_map=ANNOUNCED=REAL,..`: the real addresses of announced ones; both sides of a pair
///   are `host:port`, or both are hosts
/// - `channels=auto|plain|sharded`: the kind of Pub/Sub channel on which releases are published.
///   `auto`, the default, uses sharded channels if the servers support them (Redis 7, Valkey), as
///   Redisson does. With `format=token,wakes=spring-integration` `auto` uses plain channels, and
///   `sharded` is refused, because the waiters of that library listen on plain channels. All
///   clients of a lock must use the same kind
/// - `format`, `eviction` and `tracking`, as for `redis://`
/// - over TLS ([`tls`](Self::tls)): `tls_ca`, `tls_cert`, `tls_key` and `tls_name`, as for
///   `rediss://`
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ClusterScheme {
    tls: bool,
}

impl ClusterScheme {
    /// Returns the scheme `redis+cluster://`.
    #[must_use]
    pub fn new() -> Self {
        Self { tls: false }
    }

    /// Returns the scheme `rediss+cluster://`, for a cluster over TLS.
    #[must_use]
    pub fn tls() -> Self {
        Self { tls: true }
    }
}

impl Scheme for ClusterScheme {
    fn names(&self) -> &[&str] {
        if self.tls {
            &["rediss+cluster"]
        } else {
            &["redis+cluster"]
        }
    }

    fn options(&self) -> &[&str] {
        const OPTIONS: &[&str] = &[
            AddressMap::OPTION,
            Channels::OPTION,
            NodeSettings::EVICTION,
            NodeSettings::FORMAT,
            NodeSettings::TRACKING,
            "tls_ca",
            "tls_cert",
            "tls_key",
            "tls_name",
        ];
        if self.tls { OPTIONS } else { &OPTIONS[..5] }
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        Format::open_store(config, context, None, |format| {
            ClusterMap::store(config, context, format)
        })
    }
}
