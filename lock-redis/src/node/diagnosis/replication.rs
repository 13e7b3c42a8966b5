//! Judgements of a server's replicas, and of the writes that it accepts without them.

use super::timing::SYNCHRONISE;
use super::{Examination, StoreKind};
use crate::connection::Address;
use crate::node::replica_clocks::{Lead, ListedReplica, PART_OF_LEASE, WRONG};
use lock_core::FindingLevel::{Danger, Warning};
use lock_core::backend::Failure;
use lock_core::{Finding, FindingLevel, Moment, Replicas};
use std::fmt;
use std::time::Duration;

/// The ID of the finding about the clock of a replica.
const REPLICA_CLOCK: &str = "replica_clock";
/// A replica whose clock is certainly ahead by more than a tenth of a lease is reported as a
/// danger: after a failover to it, leases end that much earlier than their holders know. The
/// validity allows for a drift of only a hundredth.
const DANGEROUS_PART: u32 = 10;

/// A replica acknowledges once a second, so a lag of up to this many seconds is normal.
const NO_LAG: u64 = 1;

impl Examination<'_> {
    fn has_failover(&self) -> bool {
        matches!(self.store, StoreKind::Sentinel | StoreKind::Cluster)
    }

    pub(super) fn examine_replicas(&mut self) {
        const ID: &str = "replicas";
        if self.facts.field("role") != Some("master") {
            return;
        }
        let all = ListedReplica::all(self.facts.info());
        let online = all.iter().filter(|it| it.is_online).count();
        let late = |it: &&ListedReplica| !it.is_online || it.lag > NO_LAG;
        let needed = match self.node.inner.terms.replicas {
            Replicas::AtLeast(count) => count as usize,
            _ => 0,
        };
        let seen = format!("{online} connected");
        let address = self.server().to_string();
        let address = address.rsplit_once(':').unwrap_or((&address, ""));
        let start = format!("`REPLICAOF {} {}` on another server", address.0, address.1);
        if online < needed {
            let why = format!("replicas={needed} in the URL: grants are taken back");
            let remedy = format!("{start}, or ask for fewer");
            return self.bad(Danger, ID, seen, why, remedy);
        }
        if matches!(self.store, StoreKind::Quorum { .. }) && !all.is_empty() {
            let why = "a replica that takes the node's place lacks its last votes";
            return self.bad(
                Warning,
                ID,
                seen,
                why,
                "remove the replicas of a quorum's node",
            );
        }
        if self.has_failover() && online == 0 {
            let why = "no server can take the master's place, and its locks end with it";
            return self.bad(Warning, ID, seen, why, start);
        }
        if let Some(late) = all.iter().find(late) {
            let lag = if late.is_online {
                format!("is {} s behind", late.lag)
            } else {
                "is not in sync".to_owned()
            };
            let (seen, remedy) = (
                format!("{} of {}: {} {lag}", online, all.len(), late.address),
                format!("look at the log of {} and at the network", late.address),
            );
            let why = "a failover to it loses what it lacks; grants with `replicas` wait for it";
            return self.bad(Warning, ID, seen, why, remedy);
        }
        self.ok(ID, seen);
    }

    pub(super) fn examine_min_replicas(&mut self) {
        const ID: &str = "min_replicas";
        if self.facts.field("role") != Some("master") {
            return;
        }
        let replicas = ListedReplica::all(self.facts.info());
        let setting = |name| {
            self.facts
                .setting(name)
                .and_then(|value| value.parse::<u64>().ok())
        };
        // `INFO` has this count only if neither `min-replicas-to-write` nor `min-replicas-max-lag`
        // is zero.
        let good = self.facts.number("min_slaves_good_slaves");
        let wanted = setting("min-replicas-to-write");
        let max_lag = setting("min-replicas-max-lag");
        let Some(good) = good else {
            let acknowledged = self.node.inner.terms.replicas != Replicas::Off;
            if !self.has_failover() || replicas.is_empty() {
                return;
            }
            let seen = "min-replicas-to-write is 0";
            if acknowledged {
                let replicas = self.node.inner.terms.replicas;
                return self.ok(ID, format!("{seen}, and replicas={replicas} is asked for"));
            }
            let why = "a master that is cut off goes on granting what its successor grants, too";
            let remedy = format!(
                "{}, and `min-replicas-max-lag 1`, for all servers; or `replicas=1` in the URL",
                self.config_set("min-replicas-to-write 1")
            );
            return self.bad(Danger, ID, seen, why, remedy);
        };
        let Some(wanted) = wanted else {
            let seen = format!("min-replicas-to-write is set, and {good} replicas are good");
            if good == 0 {
                let why = "no lock can be taken";
                return self.bad(Danger, ID, seen, why, "start replicas, or lower it");
            }
            return self.ok(ID, seen);
        };
        let seen = format!("min-replicas-to-write is {wanted}, and {good} replicas are good");
        if good < wanted {
            let lower = self.config_set(&format!("min-replicas-to-write {good}"));
            let remedy = format!("start replicas, or {lower}");
            return self.bad(
                Danger,
                ID,
                seen,
                "the server takes no writes, so no locks",
                remedy,
            );
        }
        match max_lag {
            Some(lag) if self.has_failover() && lag > NO_LAG => {
                let seen = format!("{seen}; min-replicas-max-lag is {lag}");
                let why = format!("a master that is cut off goes on granting for {lag} s");
                let remedy = self.config_set("min-replicas-max-lag 1") + "; on all servers";
                self.bad(Warning, ID, seen, why, remedy);
            }
            _ => self.ok(ID, seen),
        }
    }

    /// Judges the clocks of the replicas. A lease is replicated as the time of day of its end, so a
    /// replica whose clock is ahead ends the lease early once it is promoted.
    pub(super) fn examine_replica_clocks(&mut self, by: Moment) {
        if self.facts.field("role") != Some("master") {
            return;
        }
        let leads = self
            .node
            .inner
            .replica_clocks
            .survey(by)
            .unwrap_or_else(|failure| {
                let server = self.node.server().to_string();
                let unknown = Self::unknown_replica_clock(&server, &failure);
                self.findings.push(unknown);
                Vec::new()
            });
        for (address, lead) in leads {
            let finding = self.judge_replica_clock(&address, lead);
            self.findings.push(finding);
        }
    }

    fn unknown_replica_clock(subject: impl fmt::Display, failure: &Failure) -> Finding {
        let seen = format!("its clock could not be asked for: {}", failure.error());
        Finding::new(FindingLevel::Unknown, REPLICA_CLOCK, subject, seen).remedy(
            "let this user reach it from here, or make sure that it is synchronised: one that is \
             ahead ends leases early after a failover",
        )
    }

    fn judge_replica_clock(&self, address: &Address, lead: Lead) -> Finding {
        let lead = match lead {
            Ok(lead) => lead,
            Err(failure) => return Self::unknown_replica_clock(address, &failure),
        };
        let time = Duration::from_micros(lead.ahead.unsigned_abs());
        let seen = match lead.ahead {
            _ if time <= lead.uncertainty => {
                format!("within {:.1?} of its master's", lead.at_most())
            }
            ..0 => format!("{time:.1?} behind its master's: leases end no earlier there"),
            _ => format!(
                "{time:.1?} ahead of its master's, give or take {:.1?}",
                lead.uncertainty
            ),
        };
        let (certain, lease) = (lead.at_least(), self.node.inner.terms.lease);
        let why = format!(
            "after a failover to it a lease ends so much earlier than its holder knows, and \
             another client has the lock, too; with `replicas` a lock is trusted for as much less, \
             and from a third of the lease ({:.1?}) on the replica does not count",
            lease / PART_OF_LEASE
        );
        let level = match certain {
            _ if certain > lease / DANGEROUS_PART => Danger,
            _ if certain > WRONG => Warning,
            _ => return Finding::ok(REPLICA_CLOCK, address, seen),
        };
        Finding::new(level, REPLICA_CLOCK, address, seen)
            .why(why)
            .remedy(SYNCHRONISE)
    }
}
