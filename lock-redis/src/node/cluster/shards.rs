//! [`Shards`]: the slots and nodes of a cluster, as one of its nodes lists them.
//!
//! `CLUSTER SHARDS` (Redis 7, Valkey) lists all nodes with their health. `CLUSTER SLOTS` is sent,
//! too, if the reply does not name one master for each slot, or lists a healthy master without
//! slots. That is always so before Redis 7; and from 7.2.0 to 7.4.1 after a failover, until the
//! replaced master is back.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{Address, ConnectionLike, Reply, Request, info_field};
use crate::keys::SLOTS;
use crate::node::Account;
use lock_core::Moment;
use lock_core::backend::Failure;
use std::ops::RangeInclusive;

/// A cluster as one of its nodes lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shards {
    /// The ID of the replying node.
    pub id: String,
    /// The newest epoch that the node knows. Of two masters, the one with the larger epoch has
    /// newer information. The epoch of a replica says less: a replica that the other nodes cannot
    /// reach increases its epoch with each election that it starts.
    pub epoch: u64,
    /// The masters that serve slots, except masters whose host is unknown.
    pub shards: Vec<Shard>,
    /// The IDs and addresses of all listed nodes. Before Redis 7 these are only masters with slots,
    /// and their replicas that are not down.
    pub nodes: Vec<(String, Address)>,
    /// True if the server supports sharded channels.
    pub sharded_channels: bool,
    /// True unless the node reports that the cluster has failed; the node then refuses writes. A
    /// node that cannot reach most masters reports that as soon as it notices. So does every node
    /// while a slot has no master, if the cluster requires all slots.
    pub is_up: bool,
}

/// A master, its slots and its replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shard {
    /// The ID of the master.
    pub id: String,
    /// The slots of the master.
    pub slots: Vec<RangeInclusive<u16>>,
    /// The address of the master.
    pub master: Address,
    /// The replicas that are not down.
    pub replicas: Vec<Address>,
    /// The replicas that are down. Always empty before Redis 7, because such a server lists no
    /// replicas that are down.
    pub replicas_down: Vec<Address>,
    /// True if the replying node lists no replica of this master, not even one that is down. Always
    /// false before Redis 7, because such a server lists no replicas that are down.
    pub has_no_replica: bool,
}

impl Shards {
    /// The number of slots of a cluster.
    pub const SLOTS: u16 = SLOTS;

    /// Returns a cluster of one master with this ID, without replicas.
    #[must_use]
    pub fn of_master(epoch: u64, id: &str, master: Address, slots: RangeInclusive<u16>) -> Self {
        let shard = Shard {
            id: id.to_owned(),
            slots: vec![slots],
            master: master.clone(),
            replicas: Vec::new(),
            replicas_down: Vec::new(),
            has_no_replica: true,
        };
        Self {
            id: id.to_owned(),
            epoch,
            nodes: vec![(id.to_owned(), master)],
            shards: vec![shard],
            sharded_channels: true,
            is_up: true,
        }
    }

    /// Returns whether the replying node is itself a master with slots.
    #[must_use]
    pub fn is_of_master(&self) -> bool {
        self.shards.iter().any(|shard| shard.id == self.id)
    }

    /// Returns the account of the replying node, which was reached at this address.
    #[must_use]
    pub fn account(&self, asked_at: Address) -> Account {
        Account {
            asked_at,
            id: self.id.clone(),
            listed: self.nodes.clone(),
        }
    }
}

/// The port of a node that the client connects to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Port {
    Plain,
    Tls,
}

/// Reads the slots and nodes of the cluster from the node on `host`.
pub(crate) fn ask(
    link: &mut dyn ConnectionLike,
    host: &str,
    port: Port,
    by: Moment,
) -> Result<Shards, Failure> {
    const CLUSTER: &[u8] = b"CLUSTER";
    let questions: [&[&[u8]]; 3] = [
        &[CLUSTER, b"MYID"],
        &[CLUSTER, b"INFO"],
        &[CLUSTER, b"SHARDS"],
    ];
    let questions = questions.each_ref().map(std::slice::from_ref);
    let (replies, outcome) = link.call_many(&questions.map(Request), by);
    outcome?;
    let [id, info, shards] = &replies[..] else {
        return Err(no_cluster(link));
    };
    for reply in [id, info, shards] {
        if let Reply::Error(error) = reply
            && !error.is_unknown_subcommand()
        {
            return Err(error_mapping::refused(
                link.server(),
                error,
                &Asked::Cluster,
            ));
        }
    }
    let id = word(id).ok_or_else(|| no_cluster(link))?;
    let epoch = epoch(info).ok_or_else(|| no_cluster(link))?;
    let sharded_channels = !matches!(shards, Reply::Error(_));
    let reporter = Reporter {
        host,
        id: &id,
        port,
    };
    let groups = read_shards(shards, &reporter).unwrap_or_default();
    let slots = if names_all_owners(&groups) {
        None
    } else {
        let reply = link.call(&Request(&[&[CLUSTER, b"SLOTS"]]), by)?;
        match &reply {
            // `CLUSTER SHARDS` named a master for each slot, so the client can do without this
            // reply.
            Reply::Error(_) if has_all_slots(&groups) => None,
            Reply::Error(error) => {
                return Err(error_mapping::refused(
                    link.server(),
                    error,
                    &Asked::Cluster,
                ));
            }
            reply => Some(read_slots(reply, &reporter).ok_or_else(|| no_cluster(link))?),
        }
    };
    let (shards, nodes) = match slots {
        Some(slots) => merge(&groups, slots),
        None => owners(&groups),
    };
    let is_up = is_up(info);
    Ok(Shards {
        id,
        epoch,
        shards,
        nodes,
        sharded_channels,
        is_up,
    })
}

fn no_cluster(link: &mut dyn ConnectionLike) -> Failure {
    link.close();
    Failure::Unknown(link.server().garbage("it does not describe a cluster"))
}

/// Returns the epoch in the reply to `CLUSTER INFO`.
pub(crate) fn epoch(reply: &Reply) -> Option<u64> {
    let text = std::str::from_utf8(reply.as_bytes()?).ok()?;
    info_field(text, "cluster_current_epoch")?
        .trim()
        .parse()
        .ok()
}

/// Returns whether the cluster is up: false only if the reply to `CLUSTER INFO` says that it
/// failed.
fn is_up(info: &Reply) -> bool {
    let text = info
        .as_bytes()
        .map(String::from_utf8_lossy)
        .unwrap_or_default();
    info_field(&text, "cluster_state").is_none_or(|state| state.trim() != "fail")
}

/// The masters that serve slots, and all listed nodes.
type Listed = (Vec<Shard>, Vec<(String, Address)>);

/// The replying node.
struct Reporter<'a> {
    /// The host at which this node was queried.
    host: &'a str,
    id: &'a str,
    port: Port,
}

impl Reporter<'_> {
    /// Returns the address of the listed node `id`. An absent or empty endpoint stands for the host
    /// at which the replying node was queried. The endpoint `?` stands for a missing host name,
    /// which the IP address replaces if the server states one. Otherwise the queried host replaces
    /// the host name of the replying node, and the host of any other node stays unknown.
    fn address(&self, id: &str, endpoint: &Reply, ip: Option<&Reply>, port: u16) -> Address {
        let text = |reply: &Reply| {
            reply
                .as_bytes()
                .map(|it| String::from_utf8_lossy(it).into())
        };
        let endpoint: String = text(endpoint).unwrap_or_default();
        let address = Address::new(&endpoint, port);
        if address.has_host() {
            return address.said_by(self.host);
        }
        let ip: String = ip.and_then(text).unwrap_or_default();
        match Address::new(&ip, port) {
            address if !ip.is_empty() && address.has_host() => address,
            _ if id == self.id => Address::new(self.host, port),
            _ => address,
        }
    }
}

/// A shard as `CLUSTER SHARDS` lists it.
#[derive(Debug)]
struct Group {
    slots: Vec<RangeInclusive<u16>>,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    id: String,
    address: Address,
    is_master: bool,
    is_well: bool,
}

impl Group {
    /// Returns the only healthy master; if none is healthy, the only master.
    fn master(&self) -> Option<&Node> {
        let masters = || self.nodes.iter().filter(|node| node.is_master);
        let best = masters().map(|node| node.is_well).max()?;
        let mut masters = masters().filter(|node| node.is_well == best);
        masters.next().filter(|_| masters.next().is_none())
    }

    fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Returns whether the group names one master for its slots. A group without slots is clear if
    /// it has no healthy master: the reply may omit the slots of a healthy one.
    fn is_clear(&self) -> bool {
        if self.slots.is_empty() {
            !self.nodes.iter().any(|node| node.is_master && node.is_well)
        } else {
            self.master().is_some()
        }
    }

    /// Returns the shard of these slots, with this listed node as their master.
    fn shard(&self, slots: Vec<RangeInclusive<u16>>, master: &Node) -> Shard {
        let replicas = |is_well| {
            let others = self
                .nodes
                .iter()
                .filter(|node| !node.is_master && node.id != master.id);
            let replicas = others.filter(|node| node.is_well == is_well);
            replicas.map(|node| node.address.clone()).collect()
        };
        Shard {
            id: master.id.clone(),
            slots,
            master: master.address.clone(),
            replicas: replicas(true),
            replicas_down: replicas(false),
            has_no_replica: self.nodes.iter().all(|node| node.is_master),
        }
    }
}

/// Parses the reply to `CLUSTER SHARDS`. `None` if it is invalid.
fn read_shards(reply: &Reply, reporter: &Reporter<'_>) -> Option<Vec<Group>> {
    let group = |shard: &Reply| {
        let slots = ranges(field(shard, "slots")?.as_array()?)?;
        let nodes = field(shard, "nodes")?.as_array()?.iter();
        let nodes = nodes
            .map(|node| Node::read(node, reporter))
            .collect::<Option<_>>()?;
        Some(Group { slots, nodes })
    };
    reply.as_array()?.iter().map(group).collect()
}

/// Returns whether every slot has one master.
fn has_all_slots(groups: &[Group]) -> bool {
    let owned = groups.iter().filter(|group| group.master().is_some());
    let owned: usize = owned
        .flat_map(|group| &group.slots)
        .map(ExactSizeIterator::len)
        .sum();
    owned == usize::from(SLOTS)
}

/// Returns whether every slot has one master, and every healthy master has slots.
fn names_all_owners(groups: &[Group]) -> bool {
    has_all_slots(groups) && groups.iter().all(Group::is_clear)
}

/// Returns the masters of all slots, and all nodes, as `CLUSTER SHARDS` lists them.
fn owners(groups: &[Group]) -> Listed {
    let groups_with_slots = groups.iter().filter(|group| !group.slots.is_empty());
    let shard = |group: &Group| Some(group.shard(group.slots.clone(), group.master()?));
    (
        with_known_masters(groups_with_slots.filter_map(shard)),
        nodes(groups),
    )
}

/// Returns the masters that `CLUSTER SLOTS` lists, and the nodes of both replies. The replicas of a
/// master are those in `CLUSTER SHARDS`, which also lists replicas that are down, unless this
/// master is missing there.
fn merge(groups: &[Group], (shards, mut all): Listed) -> Listed {
    let merged = |shard: Shard| {
        let found = groups
            .iter()
            .find_map(|group| Some((group, group.node(&shard.id)?)));
        match found {
            Some((group, master)) => group.shard(shard.slots, master),
            None => shard,
        }
    };
    let listed = nodes(groups);
    all.retain(|(id, _)| !listed.iter().any(|(other, _)| other == id));
    (
        with_known_masters(shards.into_iter().map(merged)),
        [listed, all].concat(),
    )
}

/// Omits the shards whose master has no known host: no request can be sent to that master.
fn with_known_masters(shards: impl Iterator<Item = Shard>) -> Vec<Shard> {
    shards.filter(|shard| shard.master.has_host()).collect()
}

fn nodes(groups: &[Group]) -> Vec<(String, Address)> {
    let nodes = groups.iter().flat_map(|group| &group.nodes);
    nodes
        .map(|node| (node.id.clone(), node.address.clone()))
        .collect()
}

/// Parses the reply to `CLUSTER SLOTS`, which omits replicas that are down. `None` if it is
/// invalid.
fn read_slots(reply: &Reply, reporter: &Reporter<'_>) -> Option<Listed> {
    let (mut shards, mut all): (Vec<Shard>, Vec<_>) = (Vec::new(), Vec::new());
    for range in reply.as_array()? {
        let [from, to, nodes @ ..] = range.as_array()? else {
            return None;
        };
        let slots = ranges(&[from.clone(), to.clone()])?;
        let nodes: Vec<_> = nodes
            .iter()
            .map(|node| endpoint(node, reporter))
            .collect::<Option<_>>()?;
        let [(id, master), replicas @ ..] = &nodes[..] else {
            return None;
        };
        let (id, master) = (id.clone(), master.clone());
        let replicas = replicas
            .iter()
            .map(|(_, address)| address.clone())
            .collect();
        for node in nodes {
            if !all.contains(&node) {
                all.push(node);
            }
        }
        if let Some(known) = shards.iter_mut().find(|shard| shard.id == id) {
            known.slots.extend(slots);
            continue;
        }
        let replicas_down = Vec::new();
        shards.push(Shard {
            id,
            slots,
            master,
            replicas,
            replicas_down,
            has_no_replica: false,
        });
    }
    Some((shards, all))
}

impl Node {
    fn read(reply: &Reply, reporter: &Reporter<'_>) -> Option<Self> {
        let word = |name| field(reply, name).and_then(Reply::as_bytes);
        let port = match reporter.port {
            Port::Plain => field(reply, "port"),
            Port::Tls => field(reply, "tls-port"),
        };
        // A node without a port of this kind is still listed, with port 0.
        let port = port.map_or(Some(0), number)?;
        let id = self::word(field(reply, "id")?)?;
        let endpoint = field(reply, "endpoint").unwrap_or(&Reply::Nil);
        Some(Self {
            address: reporter.address(&id, endpoint, field(reply, "ip"), port),
            id,
            is_master: word("role")? == b"master",
            is_well: !matches!(word("health"), Some(b"fail" | b"failed")),
        })
    }
}

/// Parses `[from, to, from, to, ..]`.
fn ranges(numbers: &[Reply]) -> Option<Vec<RangeInclusive<u16>>> {
    let mut ranges = Vec::new();
    for pair in numbers.chunks(2) {
        let [from, to] = pair else { return None };
        let (from, to) = (number(from)?, number(to)?);
        if from > to || to >= SLOTS {
            return None;
        }
        ranges.push(from..=to);
    }
    Some(ranges)
}

/// Parses `[endpoint, port, id, ..]`; since Redis 7, a list of names and values follows.
fn endpoint(reply: &Reply, reporter: &Reporter<'_>) -> Option<(String, Address)> {
    let [endpoint, port, id, more @ ..] = reply.as_array()? else {
        return None;
    };
    let (id, ip) = (word(id)?, more.first().and_then(|more| field(more, "ip")));
    let address = reporter.address(&id, endpoint, ip, number(port)?);
    Some((id, address))
}

fn word(reply: &Reply) -> Option<String> {
    let text = std::str::from_utf8(reply.as_bytes()?).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(reply: &Reply) -> Option<u16> {
    match reply {
        Reply::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

/// Returns the value of a name in a list of names and values.
fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let mut pairs = reply.as_array()?.chunks(2);
    pairs.find_map(|pair| match pair {
        [key, value] if key.as_bytes() == Some(name.as_bytes()) => Some(value),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
