//! Judgements of a server's settings: role, version, eviction, memory, persistence.

use super::{Examination, NodeTerms, StoreKind};
use crate::connection::error_mapping::OLDEST;
use crate::node::eviction::Memory;
use crate::wakeups::REPORTS_SINCE;
use lock_core::FindingLevel::{self, Danger, Warning};

/// The oldest version that has all the commands used.
const OLDEST_VERSION: [u32; 3] = [6, 2, 0];

/// The percentage of `maxmemory` from which a server is reported as nearly full, so that the
/// operator has time to react.
const NEARLY_FULL: u64 = 90;

/// The remedy if `INFO` is refused.
const ALLOW_INFO: &str = "allow it with `+info`";

/// Returns the level and the reason of a finding if a version lacks something; otherwise `None`.
fn judge_version(version: [u32; 3]) -> Option<(FindingLevel, &'static str)> {
    if version < OLDEST_VERSION {
        Some((Danger, OLDEST))
    } else if version < REPORTS_SINCE {
        Some((
            Warning,
            "the loss of a held lock is noticed at the next renewal, not at once",
        ))
    } else {
        None
    }
}

impl Examination<'_> {
    /// Returns the remedy that changes this setting at once, and in the configuration file.
    pub(super) fn config_set(&self, setting: &str) -> String {
        match self.service {
            Some(service) => format!("set `{setting}` {}", service.place_of_settings()),
            None => format!(
                "`CONFIG SET {setting}` on {}, and `CONFIG REWRITE`",
                self.server()
            ),
        }
    }

    /// Adds a finding with the name of the managed service, if there is one. Its settings cannot be
    /// changed by `CONFIG SET`.
    pub(super) fn examine_service(&mut self) {
        if let Some(service) = self.service {
            self.ok("service", format!("it is a server of {}", service.name()));
        }
    }

    pub(super) fn examine_role(&mut self) {
        const ID: &str = "role";
        let is_alone = matches!(self.store, StoreKind::Standalone);
        match self.facts.field("role") {
            None => self.unknown(ID, "INFO is refused, or does not say it", ALLOW_INFO),
            Some("slave") => {
                let host = self.facts.field("master_host").unwrap_or("unknown");
                let port = self.facts.field("master_port").unwrap_or("unknown");
                let (seen, remedy) = (
                    "it is a replica".to_owned(),
                    format!("let the URL name its master, {host}:{port}"),
                );
                self.bad(Danger, ID, seen, "it takes no writes, so no locks", remedy);
            }
            Some(_) if is_alone && self.facts.field("cluster_enabled") == Some("1") => {
                let url = self.node.inner.dialer.server().url("redis+cluster");
                self.bad(
                    Danger,
                    ID,
                    "it is a node of a Redis Cluster",
                    "locks of other slots cannot be taken, and a failover is not followed",
                    format!("use the URL `{url}`"),
                );
            }
            Some(role) => {
                let seen = format!("it is a {role}");
                self.ok(ID, seen);
            }
        }
    }

    pub(super) fn examine_version(&mut self) {
        const ID: &str = "version";
        let Some(version) = self.facts.version() else {
            return self.unknown(ID, "the server does not say its version", ALLOW_INFO);
        };
        let [major, minor, patch] = version;
        let seen = match self.facts.field("valkey_version") {
            Some(valkey) => format!("Valkey {valkey}"),
            None => format!("Redis {major}.{minor}.{patch}"),
        };
        match judge_version(version) {
            Some((level, why)) => {
                self.bad(level, ID, seen, why, "upgrade to Redis 7.0.5 or newer");
            }
            None => self.ok(ID, seen),
        }
    }

    pub(super) fn examine_eviction(&mut self) {
        const ID: &str = "eviction";
        let Some(memory) = Memory::read(self.facts.info()) else {
            return self.unknown(
                ID,
                "the server does not say its maxmemory-policy",
                ALLOW_INFO,
            );
        };
        let policy = &memory.policy;
        // A quorum refuses a node that evicts even without a limit: see `ServerInfo::why_no_voter`.
        let is_strict = matches!(self.store, StoreKind::Quorum { .. });
        if memory.evicts() || is_strict && policy != "noeviction" {
            let (seen, remedy) = (
                format!("maxmemory-policy is {policy}"),
                self.config_set("maxmemory-policy noeviction"),
            );
            let why = "when the memory is full the server may evict a held lock and grant it again";
            self.bad(Danger, ID, seen, why, remedy);
        } else {
            let limit = if memory.has_limit {
                ""
            } else {
                ", without a maxmemory"
            };
            let seen = format!("maxmemory-policy is {policy}{limit}: no lock is evicted");
            self.ok(ID, seen);
        }
    }

    pub(super) fn examine_memory(&mut self) {
        const ID: &str = "memory";
        let numbers = self
            .facts
            .number("used_memory")
            .zip(self.facts.number("maxmemory"));
        let Some((used, limit)) = numbers else {
            return self.unknown(ID, "the server does not say how full it is", ALLOW_INFO);
        };
        let mebibytes = |bytes: u64| bytes / (1 << 20);
        if limit == 0 {
            let seen = format!("{} MiB used, no maxmemory", mebibytes(used));
            return self.ok(ID, seen);
        }
        let percent = used.saturating_mul(100) / limit;
        let seen = format!(
            "{percent} % of the {} MiB of maxmemory are used",
            mebibytes(limit)
        );
        let remedy = format!(
            "raise `maxmemory` of {}, or delete data there",
            self.server()
        );
        if percent >= 100 {
            self.bad(
                Danger,
                ID,
                seen,
                "no lock can be taken; held ones are renewed",
                remedy,
            );
        } else if percent >= NEARLY_FULL {
            self.bad(
                Warning,
                ID,
                seen,
                "with full memory no lock can be taken",
                remedy,
            );
        } else {
            self.ok(ID, seen);
        }
    }

    pub(super) fn examine_persistence(&mut self) {
        const ID: &str = "persistence";
        let service = self.service.map(|service| (service, service.persistence()));
        if let Some((service, None)) = service {
            let seen = format!("{} keeps each write before its reply", service.name());
            return self.ok(ID, seen);
        }
        let durable = match self.store {
            StoreKind::Quorum { durable: false, .. } => {
                let seen = "not needed: a node that was restarted does not vote for max_lease";
                return self.ok(ID, seen);
            }
            StoreKind::Quorum { durable, .. } => durable,
            _ => false,
        };
        let restarted = if durable {
            "durable=yes promises that no write is lost: after a restart it votes at once, for a \
             lock that another client holds"
        } else {
            "after a restart the server grants locks again that clients still hold"
        };
        match self.facts.field("aof_enabled") {
            None => self.unknown(
                ID,
                "the server does not say whether it saves data",
                ALLOW_INFO,
            ),
            Some("0") => {
                let seen = match self.facts.setting("save") {
                    Some("") => "appendonly is no, and no snapshots are saved".to_owned(),
                    Some(save) => format!("appendonly is no; snapshots only, save {save}"),
                    None => "appendonly is no".to_owned(),
                };
                let remedy = match service.and_then(|(_, remedy)| remedy) {
                    Some(remedy) => format!("{remedy}; or `--accept {ID}`"),
                    None => self.config_set("appendonly yes"),
                };
                let NodeTerms {
                    lease,
                    restart_grace,
                    ..
                } = self.node.inner.terms;
                if matches!(self.store, StoreKind::Quorum { .. }) {
                    return self.bad(Danger, ID, seen, restarted, remedy);
                }
                if restart_grace >= lease {
                    let seen = format!("{seen}; restart_grace is {restart_grace:?}");
                    let why = "held locks are lost with a restart, and granted again after that";
                    return self.bad(Warning, ID, seen, why, remedy);
                }
                let remedy = format!(
                    "{remedy}; or give all clients `restart_grace={lease:?}`, the longest lease of \
                     any"
                );
                self.bad(Danger, ID, seen, restarted, remedy);
            }
            Some(_) if self.facts.field("aof_last_write_status") == Some("err") => {
                let seen = "the last write to the append-only file failed";
                let remedy = format!("look at the disk and the log of {}", self.server());
                self.bad(Danger, ID, seen, restarted, remedy);
            }
            Some(_) => self.judge_fsync(ID, durable),
        }
    }

    fn judge_fsync(&mut self, id: &'static str, durable: bool) {
        let Some(fsync) = self.facts.setting("appendfsync").map(str::to_owned) else {
            let seen = "appendonly is yes; appendfsync cannot be asked (CONFIG is refused)";
            return self.unknown(
                id,
                seen,
                "look at `appendfsync` yourself: `always` loses no lock",
            );
        };
        let seen = format!("appendonly is yes, appendfsync is {fsync}");
        let lost = match fsync.as_str() {
            "always" => return self.ok(id, seen),
            "everysec" => "the last second",
            _ => "the last half minute",
        };
        let (level, why) = if durable {
            let why = "durable=yes promises that no write is lost, and a crash of the machine";
            (Danger, format!("{why} loses {lost}"))
        } else {
            (
                Warning,
                format!("a crash of the machine loses {lost} of locks"),
            )
        };
        let remedy = self.config_set("appendfsync always");
        self.bad(level, id, seen, why, remedy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server in tests has one version only, so the versions are judged directly.
    #[test]
    fn old_versions_are_a_danger_or_a_warning() {
        let level = |version| judge_version(version).map(|(level, _)| level);
        assert_eq!(
            [[2, 8, 19], [6, 0, 16], [6, 1, 240]].map(level),
            [Some(Danger); 3]
        );
        assert_eq!([[6, 2, 0], [7, 0, 4]].map(level), [Some(Warning); 2]);
        assert_eq!([[7, 0, 5], [8, 0, 0]].map(level), [None; 2]);
    }
}
