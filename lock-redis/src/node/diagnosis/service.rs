//! [`Service`]: the managed service that a server belongs to, and the remedies there.
//!
//! An operator cannot run `CONFIG SET` on a managed service. Sources: the documentation of the
//! services, and replies to `INFO` that their users published.

use super::facts::Facts;
use crate::connection::Endpoint;

/// A managed service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    ElastiCache,
    MemoryDb,
    Azure,
    Upstash,
}

/// The ends of the servers' host names.
const HOSTS: [(&str, Service); 6] = [
    (".cache.amazonaws.com", Service::ElastiCache),
    (".amazonaws.com", Service::MemoryDb),
    (".redis.cache.windows.net", Service::Azure),
    (".redisenterprise.cache.azure.net", Service::Azure),
    (".redis.azure.net", Service::Azure),
    (".upstash.io", Service::Upstash),
];

impl Service {
    /// Returns the service of a server, if `INFO` or the name of its host shows it. Memorystore
    /// shows itself by neither.
    pub(super) fn of(facts: &Facts, endpoint: &Endpoint) -> Option<Self> {
        Self::by_host(endpoint).or_else(|| match facts.field("os") {
            Some("Amazon ElastiCache") => Some(Self::ElastiCache),
            _ => facts.field("upstash_version").map(|_| Self::Upstash),
        })
    }

    fn by_host(endpoint: &Endpoint) -> Option<Self> {
        let Endpoint::Tcp { host, .. } = endpoint else {
            return None;
        };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let host = host.strip_suffix(".cn").unwrap_or(&host);
        let named = HOSTS.into_iter().find(|(end, _)| host.ends_with(end));
        match named?.1 {
            Self::MemoryDb if !host.contains(".memorydb.") => None,
            service => Some(service),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ElastiCache => "Amazon ElastiCache",
            Self::MemoryDb => "Amazon MemoryDB",
            Self::Azure => "Azure",
            Self::Upstash => "Upstash",
        }
    }

    /// Returns where the operator changes a setting, in place of `CONFIG SET`.
    pub(super) fn place_of_settings(self) -> &'static str {
        match self {
            Self::ElastiCache | Self::MemoryDb => "in the parameter group, if it is there",
            Self::Azure => "in the settings of the cache, if it is there",
            Self::Upstash => "in the console, if it is there",
        }
    }

    /// Returns what the operator can do about persistence; `None` if the service promises that no
    /// acknowledged write is lost, even if its servers report no append-only file.
    pub(super) fn persistence(self) -> Option<&'static str> {
        match self {
            Self::ElastiCache => Some(
                "ElastiCache has no append-only file for clusters with replicas; Multi-AZ makes \
                 restarts without data rare",
            ),
            Self::MemoryDb => None,
            Self::Azure => Some("turn on data persistence in the settings of the cache"),
            Self::Upstash => Some("nothing can be set there; `replicas=1` waits for a replica"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_known_by_info_or_host() {
        let service =
            |info: &str, host: &str| Service::of(&Facts::of(info), &Endpoint::tcp(host, 6379));
        let (none, aws) = ("os:Linux 6.1 x86_64\r\n", "os:Amazon ElastiCache\r\n");
        for (info, host, expected) in [
            (aws, "10.0.0.7", Some(Service::ElastiCache)),
            (
                "upstash_version:1.10.5\r\n",
                "10.0.0.7",
                Some(Service::Upstash),
            ),
            (
                none,
                "a.1b2c.ng.0001.euw1.cache.amazonaws.com",
                Some(Service::ElastiCache),
            ),
            (
                none,
                "clustercfg.a.1b2c.memorydb.eu-west-1.amazonaws.com",
                Some(Service::MemoryDb),
            ),
            (none, "ec2-1-2-3-4.compute.amazonaws.com", None),
            (none, "Shop.Redis.Cache.Windows.Net.", Some(Service::Azure)),
            (
                none,
                "shop.westeurope.redis.azure.net",
                Some(Service::Azure),
            ),
            (none, "eu1-shop-1.upstash.io", Some(Service::Upstash)),
            (none, "redis.example.org", None),
            ("", "127.0.0.1", None),
        ] {
            assert_eq!(service(info, host), expected, "{info} {host}");
        }
    }
}
