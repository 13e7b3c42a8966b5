//! [`ClusterMap`]: the slot map of a cluster, and the background task that refreshes it.
//!
//! The task (`refresh`) refreshes the map periodically while the cluster is in use, and at once
//! after a failure. Concurrent requests share a refresh. `survey` queries further nodes if the
//! first one does not answer, and `evidence` decides which of their replies counts.
//!
//! A cluster is identified by the IDs of its nodes. Once a map is known, a reply counts only if the
//! ID of its node is known, and the reply lists a second known ID (if the map has more than one),
//! because the address may lead to another cluster by now.

mod evidence;
mod refresh;
mod survey;
#[cfg(test)]
mod tests;

pub(crate) use refresh::RefreshState;

use super::slot_map::{ClusterNode, NodeFactory, SlotMap};
use lock_core::backend::Failure;
use lock_core::{Clock, Error, Finding, FindingLevel, LockName, Moment};
use lock_redis::servers::{Address, Format, Granted, ServerClock, StoreKind, WatchRegistry};
use parking_lot::{Mutex, RwLock};
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use survey::{HEDGE, Source, Survey, SurveyReply};

/// The topology of a Redis Cluster: the slot map, and the task that refreshes it.
pub struct ClusterMap {
    factory: NodeFactory,
    seeds: Vec<Address>,
    clock: Arc<dyn Clock>,
    connect_timeout: Duration,
    channels: Channels,
    /// Set when the kind of channels is decided.
    settled: OnceLock<()>,
    /// Read by every request; written after a redirect or a refresh.
    map: RwLock<SlotMap>,
    /// The replicas, which are only queried for the slot map.
    query_nodes: Mutex<Vec<Arc<ClusterNode>>>,
    refresh_state: Arc<RefreshState>,
    /// True if there was a request since the last refresh.
    used: AtomicBool,
    pub(crate) watches: WatchRegistry,
    /// The ends of the first and of the last of the consecutive surveys that no known node has
    /// answered.
    silence: Mutex<Option<(Moment, Moment)>>,
    pub(crate) granted: Granted,
    /// The nodes of other clusters that were reported, with their addresses.
    reported: Mutex<HashSet<(String, Address)>>,
}

/// The kind of channels that releases are published on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Channels {
    /// Sharded channels if the node from whose reply the first map is made supports them.
    Auto,
    Plain,
    Sharded,
}

impl Channels {
    /// The name of the option in the URL.
    pub(crate) const OPTION: &str = "channels";
}

impl ClusterMap {
    pub(crate) fn new(
        factory: NodeFactory,
        refresh_state: Arc<RefreshState>,
        seeds: Vec<Address>,
        connect_timeout: Duration,
        channels: Channels,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock: Arc::clone(factory.settings.clock()),
            factory,
            seeds,
            connect_timeout,
            channels,
            settled: OnceLock::new(),
            map: RwLock::new(SlotMap::new()),
            query_nodes: Mutex::default(),
            refresh_state,
            used: AtomicBool::new(false),
            watches: WatchRegistry::default(),
            silence: Mutex::default(),
            granted: Granted::default(),
            reported: Mutex::default(),
        })
    }

    /// Ends the background task.
    pub(crate) fn close(&self) {
        self.refresh_state.close();
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn format(&self) -> &Format {
        self.factory.settings.format()
    }

    /// Returns the slot of a lock.
    pub(crate) fn slot(&self, name: &LockName) -> u16 {
        self.format().slot(name)
    }

    /// Returns the known owner of a slot, and marks the cluster as in use.
    pub(crate) fn look(&self, slot: u16) -> Option<Arc<ClusterNode>> {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
            self.refresh_state.wake();
        }
        self.map.read().owner(slot).map(Arc::clone)
    }

    /// Returns the owner of a slot. If none is known, waits for a refresh until `by`.
    pub(crate) fn owner(
        self: &Arc<Self>,
        slot: u16,
        by: Moment,
    ) -> Result<Arc<ClusterNode>, Failure> {
        if let Some(node) = self.look(slot) {
            return Ok(node);
        }
        loop {
            let began = self.clock.now();
            match self.refreshed(by) {
                Ok(()) => break,
                // A refresh that failed slowly is repeated. A failure that came at once is
                // returned.
                Err(failure) => {
                    let now = self.clock.now();
                    if now >= by || now.since(began) < HEDGE {
                        return Err(failure);
                    }
                }
            }
        }
        self.look(slot).ok_or_else(|| {
            Failure::NotSent(Error::unavailable(format!(
                "no node of the cluster serves slot {slot}"
            )))
        })
    }

    /// Returns the owner of the slot after a refresh, if that is another node than `before`.
    pub(crate) fn successor(
        self: &Arc<Self>,
        slot: u16,
        before: &ClusterNode,
        by: Moment,
    ) -> Result<Option<Arc<ClusterNode>>, Failure> {
        self.refreshed(by)?;
        Ok(self
            .look(slot)
            .filter(|owner| owner.number != before.number))
    }

    /// Returns the address to which a redirect of `from` leads. If the redirect gives the host as
    /// unknown (`?`), the host is that of the only known node with this port. Without such a node,
    /// or with several, the host stays unknown.
    pub(crate) fn destination(&self, from: &ClusterNode, to: Address) -> Address {
        let to = to.said_by(&from.address.host);
        let known = if to.has_host() {
            None
        } else {
            self.map.read().only_node_on(to.port)
        };
        known.unwrap_or(to)
    }

    /// Records a redirect: the node at `to` serves the slot now. If the redirect names no host, a
    /// refresh finds the node.
    pub(crate) fn moved(
        self: &Arc<Self>,
        slot: u16,
        from: &ClusterNode,
        to: &Address,
        by: Moment,
    ) -> Result<Arc<ClusterNode>, Failure> {
        if !to.has_host() {
            let successor = self.successor(slot, from, by)?;
            return successor.ok_or_else(|| unnamed(from));
        }
        self.learn(from, to, by)?;
        let node = self
            .map
            .write()
            .moved(slot, to, &self.factory)
            .map_err(Failure::Refused)?;
        self.follow();
        // Other slots may have moved as well.
        self.refresh_state.ask();
        Ok(node)
    }

    /// Moves the watches of slots that have another owner now to that owner.
    pub(crate) fn follow(&self) {
        self.watches.relocate(|name| {
            self.map
                .read()
                .owner(self.slot(name))
                .map(|owner| owner.node.clone())
        });
    }

    /// Makes sure that the ID of the node at `to` is known. If it is not, queries `from`, which has
    /// named the node.
    fn learn(&self, from: &ClusterNode, to: &Address, by: Moment) -> Result<(), Failure> {
        if !to.has_host() {
            return Err(unnamed(from));
        }
        if self.map.read().knows_node_at(to) {
            return Ok(());
        }
        let told = from
            .node
            .shards(&from.address.host, self.factory.settings.is_tls(), by)?;
        let mut map = self.map.write();
        map.note(&told.nodes);
        // A server before Redis 7 does not list nodes without slots, so a node that it does not
        // list is accepted.
        let listed = map.ids_at(to);
        if map.knows_node_at(to) || (listed == 0 && !told.sharded_channels) {
            return Ok(());
        }
        drop(map);
        self.refresh_state.ask();
        Err(Failure::NotSent(Error::unavailable(format!(
            "{} sends us to {to}, and lists {listed} nodes there",
            from.address
        ))))
    }

    /// Returns the node at this address, which `from` has named.
    pub(crate) fn node(
        &self,
        from: &ClusterNode,
        address: &Address,
        by: Moment,
    ) -> Result<Arc<ClusterNode>, Failure> {
        self.learn(from, address, by)?;
        self.map
            .write()
            .node(address, &self.factory)
            .map_err(Failure::Refused)
    }

    /// Records a failure of this node, and requests a refresh.
    pub(crate) fn suspect(&self, node: &ClusterNode) {
        node.set_suspect(true);
        self.refresh_state.ask();
    }

    /// Returns the masters in the order of their numbers.
    pub(crate) fn masters(&self) -> Vec<Arc<ClusterNode>> {
        let mut masters = self.map.read().masters().to_vec();
        masters.sort_unstable_by_key(|master| master.number);
        masters
    }

    /// Returns whether no replica could replace this master: if most masters, which would have to
    /// vote for the promotion, list no replica of this master, not even one that is down.
    pub(crate) fn has_no_replica(&self, of: &ClusterNode, by: Moment) -> bool {
        let masters = self.map.read().masters().to_vec();
        let sources = masters.iter().cloned().map(Source::Known).collect();
        let mut survey = Survey::new(self, sources, by);
        let (mut agreed, most) = (0, masters.len() / 2);
        while agreed <= most {
            let replies = survey.next();
            if replies.is_empty() {
                break;
            }
            for SurveyReply { node, outcome } in replies {
                agreed += usize::from(outcome.is_ok_and(|told| {
                    let is_ours = self.map.read().is_of(&told.account(node.address.clone()));
                    let shard = told.shards.iter().find(|shard| shard.master == of.address);
                    is_ours && shard.is_some_and(|shard| shard.has_no_replica)
                }));
                survey.ask_next();
            }
        }
        agreed > most
    }

    /// Returns the findings about the cluster and its masters: consequences of their state for
    /// locks.
    pub(crate) fn diagnose(self: &Arc<Self>, by: Moment) -> Result<Vec<Finding>, Failure> {
        self.refreshed(by)?;
        let masters = self.masters();
        let (mut findings, mut clocks) = (Vec::new(), Vec::new());
        let mut failed = None;
        for master in &masters {
            let (host, tls) = (&master.address.host, self.factory.settings.is_tls());
            let asked = if findings.is_empty() {
                master
                    .node
                    .diagnose_cluster(host, tls, by)
                    .map(|found| findings = found)
            } else {
                Ok(())
            };
            let found = asked.and_then(|()| master.node.examine(StoreKind::Cluster, by));
            match found {
                Ok(found) => {
                    findings.extend(found.findings);
                    clocks.extend(found.clock.map(|clock| (master.address.to_string(), clock)));
                }
                Err(failure) => {
                    let (level, address) = (FindingLevel::Danger, &master.address);
                    let finding = Finding::failed(level, "cluster_node", address, failure.error())
                        .why("locks in its slots cannot be taken")
                        .remedy("start it, or wait until a replica has taken its place");
                    failed.get_or_insert((Vec::new(), failure)).0.push(finding);
                }
            }
        }
        match failed {
            Some((_, failure)) if findings.is_empty() => return Err(failure),
            Some((unreachable, _)) => findings.extend(unreachable),
            None => {}
        }
        findings.extend(ServerClock::compare(
            "the cluster",
            &clocks,
            StoreKind::Cluster,
        ));
        Ok(findings)
    }

    /// Makes the node at `address` the owner of this slot.
    #[cfg(test)]
    pub(crate) fn place(&self, slot: u16, address: &Address) {
        self.map
            .write()
            .moved(slot, address, &self.factory)
            .unwrap();
    }

    #[cfg(test)]
    pub(crate) fn is_asked_for(&self) -> bool {
        self.refresh_state.is_asked()
    }

    fn is_known(&self) -> bool {
        self.map.read().is_known()
    }
}

/// Returns the failure of a redirect that lacks the host name of a node.
fn unnamed(from: &ClusterNode) -> Failure {
    Failure::NotSent(Error::unavailable(format!(
        "{} sends us to a node whose host name it does not know: set `cluster-announce-hostname` \
         on each node",
        from.address
    )))
}

impl fmt::Debug for ClusterMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let map = self.map.read();
        f.debug_struct("ClusterMap")
            .field("epoch", &map.epoch())
            .field("masters", &map.masters())
            .finish_non_exhaustive()
    }
}
