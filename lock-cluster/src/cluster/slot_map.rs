//! [`SlotMap`]: which node serves which slot.

use super::address_map::AddressMap;
use lock_core::{Error, Moment};
use lock_redis::parts::{Account, Address, Listing, Node, NodeSettings, SLOTS, Shards};
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A node that is a master, or was one when we last heard.
pub(crate) struct ClusterNode {
    /// Its lane's. Two nodes never have the same, nor one the same redirect_queue after it was gone.
    pub(crate) number: u64,
    /// Where the cluster says that it is.
    pub(crate) address: Address,
    pub(crate) node: Arc<Node>,
    /// How many replicas are listed and not held for down.
    replicas: Arc<ReplicaCount>,
    /// Something went wrong there that was not followed by an answer: others are asked for the cluster first.
    suspect: AtomicBool,
    /// A node has listed it as a master of slots. Set under the lock of the map.
    listed: AtomicBool,
}

impl ClusterNode {
    fn replicas(&self) -> u32 {
        self.replicas.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set_suspect(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Relaxed);
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }
}

/// How many replicas a master has that are listed and not held for down.
#[derive(Debug, Default)]
struct ReplicaCount(AtomicU32);

impl Listing for ReplicaCount {
    fn replicas(&self, _: Moment) -> Result<u32, Error> {
        Ok(self.0.load(Ordering::Relaxed))
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

/// Makes masters.
#[derive(Debug)]
pub(crate) struct NodeFactory {
    pub(crate) settings: NodeSettings,
    pub(crate) addresses: AddressMap,
    /// What is done when a node's subscriber has lost its connection, or finds none.
    pub(crate) trouble: RefreshHook,
}

/// See [`NodeFactory::trouble`].
pub(crate) struct RefreshHook(pub(crate) Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for RefreshHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RefreshHook")
    }
}

/// The slots and the masters that serve them.
#[derive(Debug)]
pub(crate) struct SlotMap {
    /// For each slot a place in `masters`.
    owners: Vec<u16>,
    masters: Vec<Arc<ClusterNode>>,
    /// Replicas that may be asked for the cluster.
    replicas: Vec<Address>,
    /// The IDs and addresses of all nodes, by the word of nodes that were known before.
    nodes: HashSet<(String, Address)>,
    /// As the node said that told of all this.
    epoch: u64,
    /// Whether anybody has told yet.
    known: bool,
    last_number: u64,
}

const NO_OWNER: u16 = u16::MAX;

impl SlotMap {
    /// The map of one who knows nothing yet.
    pub(crate) fn new() -> Self {
        let owners = vec![NO_OWNER; SLOTS.into()];
        Self {
            owners,
            masters: Vec::new(),
            replicas: Vec::new(),
            nodes: HashSet::new(),
            epoch: 0,
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

    /// Who serves a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Arc<ClusterNode>> {
        self.masters.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// The masters.
    pub(crate) fn masters(&self) -> &[Arc<ClusterNode>] {
        &self.masters
    }

    /// The replicas.
    pub(crate) fn replicas(&self) -> &[Address] {
        &self.replicas
    }

    /// Whether it is known which node belongs to this address.
    pub(crate) fn knows_node_at(&self, address: &Address) -> bool {
        match self.ids_at(address) {
            0 => self.masters.iter().any(|node| node.address == *address),
            ids => ids == 1,
        }
    }

    /// How many nodes are listed at this address.
    pub(crate) fn ids_at(&self, address: &Address) -> usize {
        self.nodes.iter().filter(|(_, at)| at == address).count()
    }

    /// The node that belongs to this address; `None` if none is listed there, or several are.
    fn id_at(&self, address: &Address) -> Option<&str> {
        let mut ids = self.nodes.iter().filter(|(_, at)| at == address).map(|(id, _)| id.as_str());
        ids.next().filter(|_| ids.next().is_none())
    }

    /// Whether the node of this account is of the cluster that is known: it is known itself, and
    /// knows one more at least. A node that was moved to another cluster keeps its ID.
    pub(crate) fn is_of(&self, account: &Account) -> bool {
        let known: BTreeSet<_> = self.nodes.iter().map(|(id, _)| id.as_str()).collect();
        let common = account.ids().filter(|id| known.contains(id)).count();
        known.contains(account.id.as_str()) && common >= known.len().min(2)
    }

    /// The IDs of the nodes, for messages.
    pub(crate) fn ids(&self) -> String {
        listed(self.nodes.iter().map(|(id, _)| id.as_str()))
    }

    /// A node that is known lists these. They replace what was listed at their addresses before.
    pub(crate) fn note(&mut self, nodes: &[(String, Address)]) {
        self.nodes.retain(|(_, at)| !nodes.iter().any(|(_, address)| address == at));
        self.nodes.extend(nodes.iter().cloned());
    }

    /// The node on this address, made if there is none.
    pub(crate) fn node(
        &mut self,
        address: &Address,
        factory: &NodeFactory,
    ) -> Result<Arc<ClusterNode>, Error> {
        let id = self.id_at(address).map(str::to_owned);
        self.find_or_make(address, id.as_deref(), factory)
            .map(|place| Arc::clone(&self.masters[usize::from(place)]))
    }

    /// The one of this ID, where that is known: another one at the same address is another node.
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
        let place = u16::try_from(self.masters.len()).ok().filter(|place| *place < SLOTS);
        let place =
            place.ok_or_else(|| Error::unavailable("the cluster has more masters than slots"))?;
        let real = factory.addresses.real(address);
        let node = factory.settings.guest_on(&real.host, real.port, id)?;
        let node = self.make(address, node, factory);
        self.masters.push(node);
        Ok(place)
    }

    /// A node that serves nothing, to ask for the cluster. `None` if its address cannot be used.
    pub(crate) fn query_node(
        &mut self,
        address: &Address,
        factory: &NodeFactory,
    ) -> Option<Arc<ClusterNode>> {
        let real = factory.addresses.real(address);
        let node = factory.settings.bystander_on(&real.host, real.port).ok()?;
        Some(self.make(address, node, factory))
    }

    fn make(&mut self, address: &Address, node: Node, factory: &NodeFactory) -> Arc<ClusterNode> {
        let replicas = Arc::<ReplicaCount>::default();
        let node = Arc::new(node.with_listing(Arc::clone(&replicas) as _));
        node.on_trouble(Arc::clone(&factory.trouble.0));
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

    /// By a node's word, another one serves this slot.
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

    /// Takes superseded what a node says of the whole cluster. Who serves nothing any more is forgotten.
    pub(crate) fn take_over(
        &mut self,
        told: &Shards,
        factory: &NodeFactory,
    ) -> Result<RemovedNodes, Error> {
        let mut masters = Vec::new();
        let mut owners = vec![NO_OWNER; SLOTS.into()];
        for (place, shard) in told.shards.iter().enumerate() {
            let place_of_it = self.find_or_make(&shard.master, Some(&shard.id), factory)?;
            let node = Arc::clone(&self.masters[usize::from(place_of_it)]);
            let replicas = u32::try_from(shard.replicas.len()).unwrap_or(u32::MAX);
            node.replicas.0.store(replicas, Ordering::Relaxed);
            masters.push(node);
            for slot in shard.slots.iter().cloned().flatten() {
                owners[usize::from(slot)] = u16::try_from(place).unwrap_or(NO_OWNER);
            }
        }
        let replicas = told.shards.iter().flat_map(|shard| &shard.replicas);
        self.replicas = replicas.filter(|replica| replica.port > 0).cloned().collect();
        self.nodes = told.nodes.iter().cloned().collect();
        // One that has only been named by another, as the next node of a slot that is just moving, this one may not know of
        // yet, and it may have no slot yet: that is no reason to end what is under way there.
        let is_gone = |node: &ClusterNode| {
            let is_kept = masters.iter().any(|other| other.number == node.number);
            // Another node is at its address by now.
            let is_replaced = masters.iter().any(|other| other.address == node.address);
            let is_left =
                node.listed.load(Ordering::Relaxed) && !self.replicas.contains(&node.address);
            !is_kept && (is_replaced || is_left)
        };
        let gone = self.masters.extract_if(.., |node| is_gone(node)).collect();
        masters.iter().for_each(|node| node.listed.store(true, Ordering::Relaxed));
        let forgotten = std::mem::replace(&mut self.masters, masters);
        self.owners = owners;
        (self.epoch, self.known) = (told.epoch, true);
        Ok(RemovedNodes { gone, _forgotten: forgotten })
    }
}

/// IDs, for messages; the first of very many.
pub(crate) fn listed<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 6;
    let ids: BTreeSet<_> = ids.collect();
    let mut shown: Vec<_> = ids.iter().take(MOST).copied().collect();
    if ids.len() > MOST {
        shown.push("..");
    }
    shown.join(", ")
}

/// Members that the map has no more. To be dropped where it is not locked: what is told then to those who wait on their
/// connections is not ours, and may look here.
pub(crate) struct RemovedNodes {
    /// Those that are held for down, or unknown by now: no answer is to be expected of them.
    pub(crate) gone: Vec<Arc<ClusterNode>>,
    _forgotten: Vec<Arc<ClusterNode>>,
}
