//! [`ClusterScheme`]: what `redis+cluster://` and `rediss+cluster://` stand for.

use super::backend::ClusterBackend;
use lock_core::{Backend, Config, Context, Error, Scheme};
use lock_redis::parts::{EVICTION, FORMAT};
use std::sync::Arc;

/// A Redis Cluster, reached by some of its nodes: `redis+cluster://[user[:password]@]host[:port],host[:port],..`. The others
/// are found by asking these.
///
/// - `address_map=ANNOUNCED=REAL,..`: nodes that are elsewhere than the cluster says; each side `host:port`, or both hosts
/// - `channels=auto|plain|sharded`: how releases are told. `auto`, the default, takes sharded channels where the servers
///   know them (Redis 7, Valkey), as Redisson does, but plain ones with `format=token,wakes=spring-integration`, whose
///   waiters listen there; all who share a lock must do the same
/// - superseded TLS ([`tls`](Self::tls)): `tls_ca`, `tls_cert`, `tls_key` and `tls_name`, as for `rediss://`
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ClusterScheme {
    tls: bool,
}

impl ClusterScheme {
    /// `redis+cluster://`.
    #[must_use]
    pub fn new() -> Self {
        Self { tls: false }
    }

    /// `rediss+cluster://`: the same superseded TLS.
    #[must_use]
    pub fn tls() -> Self {
        Self { tls: true }
    }
}

impl Scheme for ClusterScheme {
    fn names(&self) -> &[&str] {
        if self.tls { &["rediss+cluster"] } else { &["redis+cluster"] }
    }

    fn options(&self) -> &[&str] {
        const OPTIONS: &[&str] = &[
            "address_map",
            "channels",
            EVICTION,
            FORMAT,
            "tls_ca",
            "tls_cert",
            "tls_key",
            "tls_name",
        ];
        if self.tls { OPTIONS } else { &OPTIONS[..4] }
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        Ok(Arc::new(ClusterBackend::new(config, context)?))
    }
}
