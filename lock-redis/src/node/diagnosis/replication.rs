//! Judgements of a server's replicas, and of what it does without them.

use super::facts::Facts;
use super::{Examination, StoreKind};
use lock_core::FindingLevel::{Danger, Warning};
use lock_core::Replicas;

/// A replica acknowledges once a second, so this many seconds are no lag.
const NO_LAG: u64 = 1;

/// A replica, as its master lists it.
struct Replica {
    address: String,
    is_online: bool,
    /// For how many seconds it has acknowledged nothing.
    lag: u64,
}

impl Replica {
    /// Reads `ip=10.0.0.2,port=6379,state=online,offset=1,lag=0`.
    fn read(line: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        Some(Self {
            address: format!("{}:{}", field("ip")?, field("port")?),
            is_online: field("state")? == "online",
            lag: field("lag")?.parse().unwrap_or(u64::MAX),
        })
    }

    fn all(facts: &Facts) -> Vec<Self> {
        let line = |number| facts.field(&format!("slave{number}"));
        (0..).map_while(line).filter_map(Self::read).collect()
    }
}

impl Examination<'_> {
    fn has_failover(&self) -> bool {
        matches!(self.store, StoreKind::Sentinel | StoreKind::Cluster)
    }

    pub(super) fn examine_replicas(&mut self) {
        const ID: &str = "replicas";
        if self.facts.field("role") != Some("master") {
            return;
        }
        let all = Replica::all(&self.facts);
        let online = all.iter().filter(|it| it.is_online).count();
        let late = |it: &&Replica| !it.is_online || it.lag > NO_LAG;
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
            return self.bad(Warning, ID, seen, why, "remove the replicas of a quorum's node");
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
        let replicas = Replica::all(&self.facts);
        let setting = |name| self.facts.setting(name).and_then(|value| value.parse::<u64>().ok());
        // `INFO` counts the good ones only where it is set.
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
                "`CONFIG SET min-replicas-to-write 1` and `CONFIG SET min-replicas-max-lag 1` on \
                 all servers, beginning with {}; or `replicas=1` in the URL",
                self.server()
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
            let remedy = format!(
                "start replicas, or `CONFIG SET min-replicas-to-write {good}` on {}",
                self.server()
            );
            return self.bad(Danger, ID, seen, "the server takes no writes, so no locks", remedy);
        }
        match max_lag {
            Some(lag) if self.has_failover() && lag > NO_LAG => {
                let seen = format!("{seen}; min-replicas-max-lag is {lag}");
                let why = format!("a master that is cut off goes on granting for {lag} s");
                let remedy = "`CONFIG SET min-replicas-max-lag 1` on all servers";
                self.bad(Warning, ID, seen, why, remedy);
            }
            _ => self.ok(ID, seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_as_their_master_lists_them() {
        let facts = Facts::of(
            "slave0:ip=::1,port=1,state=online,offset=5,lag=0\r\n\
             slave1:ip=h,port=2,state=wait_bgsave,offset=0,lag=7\r\n",
        );
        let all = Replica::all(&facts);
        let read: Vec<_> = all.iter().map(|it| (&*it.address, it.is_online, it.lag)).collect();
        assert_eq!(read, [("::1:1", true, 0), ("h:2", false, 7)]);
    }
}
