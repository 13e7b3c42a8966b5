//! [`Node::diagnose_cluster`]: a node's description of its cluster.

use super::Asking;
use crate::connection::info_field;
use crate::keys::SLOTS;
use crate::node::Node;
use crate::node::cluster::{self, Port};
use lock_core::backend::Failure;
use lock_core::{Finding, FindingLevel, Moment};

impl Node {
    /// Reports this node's view of its cluster: the slots that are served, the state of the
    /// cluster, and the replicas that are down. `host` is the server's host, as this client
    /// addresses it.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: the node cannot be queried.
    pub fn diagnose_cluster(
        &self,
        host: &str,
        tls: bool,
        by: Moment,
    ) -> Result<Vec<Finding>, Failure> {
        let mut asking = Asking::new(self, by)?;
        let info = asking.ask(&[b"CLUSTER", b"INFO"])?;
        let info = info
            .as_bytes()
            .map(String::from_utf8_lossy)
            .unwrap_or_default();
        let port = if tls { Port::Tls } else { Port::Plain };
        let by = asking.deadline();
        let told = cluster::ask(&mut asking.link, host, port, by)?;
        let (server, mut findings) = (self.inner.dialer.server(), Vec::new());
        let served: usize = told
            .shards
            .iter()
            .flat_map(|shard| &shard.slots)
            .map(ExactSizeIterator::len)
            .sum();
        let failing = info_field(&info, "cluster_slots_fail").map_or("0", str::trim);
        let missing = usize::from(SLOTS).saturating_sub(served);
        findings.push(if missing > 0 || failing != "0" {
            let seen = format!("{missing} slots have no master, and {failing} one that is down");
            Finding::new(FindingLevel::Danger, "cluster_slots", server, seen)
                .why("locks in these slots cannot be taken")
                .remedy(format!(
                    "start the missing masters; `redis-cli --cluster fix {server}`"
                ))
        } else {
            let seen = format!("all are served, by {} masters", told.shards.len());
            Finding::ok("cluster_slots", server, seen)
        });
        let state = info_field(&info, "cluster_state").map_or("unknown", str::trim);
        findings.push(match state {
            "ok" => Finding::ok("cluster_state", server, "the cluster is up"),
            state => Finding::new(
                FindingLevel::Danger,
                "cluster_state",
                server,
                format!("cluster_state is {state}"),
            )
            .why("its masters take no writes, so no locks")
            .remedy(format!(
                "`redis-cli --cluster check {server}` names what is missing"
            )),
        });
        let down: Vec<_> = told
            .shards
            .iter()
            .flat_map(|shard| &shard.replicas_down)
            .collect();
        if !down.is_empty() {
            let addresses: Vec<_> = down.iter().map(ToString::to_string).collect();
            let seen = format!("the replicas {} are down", addresses.join(", "));
            let finding = Finding::new(FindingLevel::Warning, "cluster_nodes", server, seen)
                .why("they cannot take the place of their masters")
                .remedy("start them, or remove them by `redis-cli --cluster del-node`");
            findings.push(finding);
        }
        Ok(findings)
    }
}
