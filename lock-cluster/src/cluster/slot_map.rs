//! [`SlotMap`]: the slots and the nodes that serve them.

use lock_core::Error;
use lock_redis::servers::{Account, Address, AddressMap, Node, NodeSettings, Shards};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A node of the cluster: a present or former master, or a node that is only queried for the slot
/// map.
pub(crate) struct ClusterNode {
    /// The number of the node and of its renewal worker, never used for another node.
    pub(crate) number: u64,
    /// The address that the cluster announces or, for a node that is queried at an address of the
    /// URL, that address.
    pub(crate) address: Address,
    pub(crate) node: Node,
    /// The real addresses of the listed replicas that are not down.
    replicas: ListedReplicas,
    /// True if a request to the node has failed since its last answer to a survey: other nodes are
    /// queried for the slot map first.
    suspect: AtomicBool,
    /// True if a node has listed this one as a master of slots. Set with the map locked.
    listed: AtomicBool,
}

type ListedReplicas = Arc<Mutex<Vec<Address>>>;

fn count(replicas: &ListedReplicas) -> u32 {
    u32::try_from(replicas.lock().len()).unwrap_or(u32::MAX)
}

impl ClusterNode {
    fn replicas(&self) -> u32 {
        count(&self.replicas)
    }

    pub(crate) fn set_suspect(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Relaxed);
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for ClusterNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterNode")
            .field("address", &format_args!("{}", self.address))
            .field("replicas", &self.replicas())
            .field("suspect", &self.is_suspect())
            .finish_non_exhaustive()
    }
}

/// The settings with which nodes are created.
pub(crate) struct NodeFactory {
    pub(crate) settings: NodeSettings,
    pub(crate) addresses: AddressMap,
    /// Called when a node's subscriber loses its connection, or gets none.
    pub(crate) trouble: Arc<dyn Fn() + Send + Sync>,
}

/// The slots and the masters that serve them.
#[derive(Debug)]
pub(crate) struct SlotMap {
    /// The index in `masters` for each slot.
    owners: Vec<u16>,
    masters: Vec<Arc<ClusterNode>>,
    /// The replicas that can be queried for the slot map.
    replicas: Vec<Address>,
    /// The IDs and addresses of all nodes that known nodes have listed.
    nodes: HashSet<(String, Address)>,
    /// The epoch of the last reply; 0 if the reply came from a replica that does not report the
    /// cluster as up, because such a replica may be cut off from the other nodes.
    epoch: u64,
    /// True if the last reply came from a master.
    is_by_master: bool,
    /// True if there was a reply.
    known: bool,
    last_number: u64,
}

const NO_OWNER: u16 = u16::MAX;

impl SlotMap {
    /// Returns a map without nodes.
    pub(crate) fn new() -> Self {
        let owners = vec![NO_OWNER; Shards::SLOTS.into()];
        Self {
            owners,
            masters: Vec::new(),
            replicas: Vec::new(),
            nodes: HashSet::new(),
            epoch: 0,
            is_by_master: false,
            known: false,
            last_number: 0,
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether replies of these nodes may replace this map by one with a smaller epoch.
    /// That is so if the map came from a replica, whose epoch proves nothing, and the nodes include
    /// most of the masters in the map: without their votes no other master can have been elected.
    pub(crate) fn is_outvoted_by<'a>(&self, ids: impl Iterator<Item = &'a str>) -> bool {
        let masters = self
            .masters
            .iter()
            .filter(|node| node.listed.load(Ordering::Relaxed));
        let masters: HashSet<_> = masters.filter_map(|node| node.node.identity()).collect();
        let replied = ids.filter(|id| masters.iter().any(|master| **master == **id));
        !self.is_by_master && replied.collect::<HashSet<_>>().len() * 2 > masters.len()
    }

    /// Returns the owner of a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Arc<ClusterNode>> {
        self.masters
            .get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// Returns the masters.
    pub(crate) fn masters(&self) -> &[Arc<ClusterNode>] {
        &self.masters
    }

    /// Returns the replicas.
    pub(crate) fn replicas(&self) -> &[Address] {
        &self.replicas
    }

    /// Returns whether exactly one node is known at this address, by a list of nodes or by a
    /// redirect.
    pub(crate) fn knows_node_at(&self, address: &Address) -> bool {
        match self.ids_at(address) {
            0 => self.masters.iter().any(|node| node.address == *address),
            ids => ids == 1,
        }
    }

    /// Returns the address of the only node that is listed with this port; `None` if none or
    /// several are.
    pub(crate) fn only_node_on(&self, port: u16) -> Option<Address> {
        let on_port = |at: &&Address| at.port == port && at.has_host();
        let mut found = self.nodes.iter().map(|(_, at)| at).filter(on_port);
        found.next().filter(|_| found.next().is_none()).cloned()
    }

    /// Returns the number of nodes listed at this address.
    pub(crate) fn ids_at(&self, address: &Address) -> usize {
        self.nodes.iter().filter(|(_, at)| at == address).count()
    }

    /// Returns the ID of the node at this address; `None` if none or several are listed.
    fn id_at(&self, address: &Address) -> Option<&str> {
        let mut ids = self
            .nodes
            .iter()
            .filter(|(_, at)| at == address)
            .map(|(id, _)| id.as_str());
        ids.next().filter(|_| ids.next().is_none())
    }

    /// Returns whether this account is of the known cluster: its node is known, and lists at least
    /// one other known node, if there is one. The node's own ID is not enough, because a node that
    /// was moved to another cluster keeps it.
    pub(crate) fn is_of(&self, account: &Account) -> bool {
        let known: BTreeSet<_> = self.nodes.iter().map(|(id, _)| id.as_str()).collect();
        let common = account.ids().filter(|id| known.contains(id)).count();
        known.contains(account.id.as_str()) && common >= known.len().min(2)
    }

    /// Returns the IDs of the nodes, for messages.
    pub(crate) fn ids(&self) -> String {
        listed(self.nodes.iter().map(|(id, _)| id.as_str()))
    }

    /// Adds nodes that a known node lists. They replace earlier nodes at the same addresses.
    pub(crate) fn note(&mut self, nodes: &[(String, Address)]) {
        self.nodes
            .retain(|(_, at)| !nodes.iter().any(|(_, address)| address == at));
        self.nodes.extend(nodes.iter().cloned());
    }

    /// Returns the node at this address. Creates it if there is none.
    pub(crate) fn node(
        &mut self,
        address: &Address,
        factory: &NodeFactory,
    ) -> Result<Arc<ClusterNode>, Error> {
        let id = self.id_at(address).map(str::to_owned);
        self.find_or_make(address, id.as_deref(), factory)
            .map(|place| Arc::clone(&self.masters[usize::from(place)]))
    }

    /// Returns the index of the node with this address and ID. Creates it if there is none: another
    /// ID at the same address is another node.
    fn find_or_make(
        &mut self,
        address: &Address,
        id: Option<&str>,
        factory: &NodeFactory,
    ) -> Result<u16, Error> {
        let is_it = |node: &Arc<ClusterNode>| {
            let is_another = |id: &str| node.node.identity().is_some_and(|its| *its != *id);
            node.address == *address && !id.is_some_and(is_another)
        };
        if let Some(place) = self.masters.iter().position(is_it) {
            return Ok(u16::try_from(place).expect("there are fewer masters than slots"));
        }
        let place = u16::try_from(self.masters.len())
            .ok()
            .filter(|place| *place < Shards::SLOTS);
        let place =
            place.ok_or_else(|| Error::unavailable("the cluster has more masters than slots"))?;
        let real = factory.addresses.real(address);
        let replicas = ListedReplicas::default();
        let [counted, listed] = [(); 2].map(|()| Arc::clone(&replicas));
        let count = Arc::new(move || Ok(count(&counted)));
        // A replica without a usable port also counts, but its clock cannot be read.
        let addresses = Arc::new(move || listed.lock().clone());
        let node = factory
            .settings
            .guest_on(&real.host, real.port, id, count, addresses)?;
        let node = self.make(address, node, replicas, factory);
        self.masters.push(node);
        Ok(place)
    }

    /// Creates a node for queries about the slot map only. `None` if its address cannot be used.
    pub(crate) fn query_node(
        &mut self,
        address: &Address,
        factory: &NodeFactory,
    ) -> Option<Arc<ClusterNode>> {
        let real = factory.addresses.real(address);
        let node = factory.settings.bystander_on(&real.host, real.port).ok()?;
        Some(self.make(address, node, Arc::default(), factory))
    }

    fn make(
        &mut self,
        address: &Address,
        node: Node,
        replicas: ListedReplicas,
        factory: &NodeFactory,
    ) -> Arc<ClusterNode> {
        node.on_trouble(Arc::clone(&factory.trouble));
        self.last_number += 1;
        Arc::new(ClusterNode {
            number: self.last_number,
            address: address.clone(),
            node,
            replicas,
            suspect: AtomicBool::new(false),
            listed: AtomicBool::new(false),
        })
    }

    /// Records a redirect: the node at this address serves the slot.
    pub(crate) fn moved(
        &mut self,
        slot: u16,
        to: &Address,
        factory: &NodeFactory,
    ) -> Result<Arc<ClusterNode>, Error> {
        let id = self.id_at(to).map(str::to_owned);
        let place = self.find_or_make(to, id.as_deref(), factory)?;
        self.owners[usize::from(slot)] = place;
        Ok(Arc::clone(&self.masters[usize::from(place)]))
    }

    /// Replaces the map by the reply of a node. Only the masters in the reply remain.
    pub(crate) fn take_over(
        &mut self,
        told: &Shards,
        factory: &NodeFactory,
    ) -> Result<RemovedNodes, Error> {
        let mut masters = Vec::new();
        let mut owners = vec![NO_OWNER; Shards::SLOTS.into()];
        for (place, shard) in told.shards.iter().enumerate() {
            let place_of_it = self.find_or_make(&shard.master, Some(&shard.id), factory)?;
            let node = Arc::clone(&self.masters[usize::from(place_of_it)]);
            let replicas = shard
                .replicas
                .iter()
                .map(|replica| factory.addresses.real(replica));
            *node.replicas.lock() = replicas.collect();
            masters.push(node);
            for slot in shard.slots.iter().cloned().flatten() {
                owners[usize::from(slot)] = u16::try_from(place).unwrap_or(NO_OWNER);
            }
        }
        let replicas = told.shards.iter().flat_map(|shard| &shard.replicas);
        self.replicas = replicas
            .filter(|replica| replica.port > 0)
            .cloned()
            .collect();
        self.nodes = told.nodes.iter().cloned().collect();
        // A node known only from a redirect leaves the map but is not gone, so its requests
        // continue: it may be importing its first slot, and the replying node may not know it.
        let is_gone = |node: &ClusterNode| {
            let is_kept = masters.iter().any(|other| other.number == node.number);
            // Another node has this address now.
            let is_replaced = masters.iter().any(|other| other.address == node.address);
            let is_left =
                node.listed.load(Ordering::Relaxed) && !self.replicas.contains(&node.address);
            !is_kept && (is_replaced || is_left)
        };
        let gone = self.masters.extract_if(.., |node| is_gone(node)).collect();
        masters
            .iter()
            .for_each(|node| node.listed.store(true, Ordering::Relaxed));
        let forgotten = std::mem::replace(&mut self.masters, masters);
        self.owners = owners;
        self.is_by_master = told.is_of_master();
        self.epoch = if self.is_by_master || told.is_up {
            told.epoch
        } else {
            0
        };
        self.known = true;
        Ok(RemovedNodes {
            gone,
            _forgotten: forgotten,
        })
    }
}

/// Returns IDs for a message, at most six.
pub(crate) fn listed<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 6;
    let ids: BTreeSet<_> = ids.collect();
    let mut shown: Vec<_> = ids.iter().take(MOST).copied().collect();
    if ids.len() > MOST {
        shown.push("..");
    }
    shown.join(", ")
}

/// Nodes that the map no longer has. Must be dropped with the map unlocked, because the callbacks
/// of their requests may read the map.
pub(crate) struct RemovedNodes {
    /// Nodes that are down or no longer in the cluster, from which no answer is expected.
    pub(crate) gone: Vec<Arc<ClusterNode>>,
    _forgotten: Vec<Arc<ClusterNode>>,
}
