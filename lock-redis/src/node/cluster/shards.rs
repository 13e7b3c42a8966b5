//! [`Shards`]: the slots and nodes of a cluster, as one of its nodes lists them.
//!
//! `CLUSTER SHARDS` (Redis 7, Valkey) lists loading replicas too, with their health. Older servers,
//! and replies with two masters of one slot, need `CLUSTER SLOTS`.

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
    /// The newest epoch that the node knows. A reply with a larger epoch is newer.
    pub epoch: u64,
    /// The masters that serve slots.
    pub shards: Vec<Shard>,
    /// The IDs and addresses of all listed nodes. Before Redis 7 only masters with slots, and their
    /// replicas.
    pub nodes: Vec<(String, Address)>,
    /// Whether the server supports sharded channels.
    pub sharded_channels: bool,
}

/// A master, its slots and its replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shard {
    /// The ID of the master.
    pub id: String,
    /// Its slots.
    pub slots: Vec<RangeInclusive<u16>>,
    /// The address of the master.
    pub master: Address,
    /// The replicas that are not down.
    pub replicas: Vec<Address>,
    /// The replicas that are down. None before Redis 7, which does not list those.
    pub replicas_down: Vec<Address>,
    /// Whether the node lists no replica of it, not even one that is down. Never before Redis 7,
    /// which does not list those.
    pub has_no_replica: bool,
}

impl Shards {
    /// A cluster of these shards, listed by the first master.
    #[must_use]
    pub fn new(epoch: u64, shards: Vec<Shard>) -> Self {
        let nodes = shards.iter().map(|shard| (shard.id.clone(), shard.master.clone()));
        let id = shards.first().map(|shard| shard.id.clone()).unwrap_or_default();
        Self { id, epoch, nodes: nodes.collect(), shards, sharded_channels: true }
    }

    /// The account of the node at this address.
    #[must_use]
    pub fn account(&self, asked_at: Address) -> Account {
        Account { asked_at, id: self.id.clone(), listed: self.nodes.clone() }
    }
}

impl Shard {
    /// A master of this ID with these slots, without replicas.
    #[must_use]
    pub fn new(id: &str, master: Address, slots: RangeInclusive<u16>) -> Self {
        let (id, slots) = (id.to_owned(), vec![slots]);
        let (replicas, replicas_down) = (Vec::new(), Vec::new());
        Self { id, slots, master, replicas, replicas_down, has_no_replica: true }
    }
}

/// Which of a node's two ports is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Port {
    Plain,
    Tls,
}

/// Asks the cluster node on `host`.
pub(crate) fn ask(
    link: &mut dyn ConnectionLike,
    host: &str,
    port: Port,
    by: Moment,
) -> Result<Shards, Failure> {
    const CLUSTER: &[u8] = b"CLUSTER";
    let questions: [&[&[u8]]; 3] =
        [&[CLUSTER, b"MYID"], &[CLUSTER, b"INFO"], &[CLUSTER, b"SHARDS"]];
    let questions = questions.each_ref().map(std::slice::from_ref);
    let (replies, outcome) = link.call_many(&questions.map(Request), by);
    outcome?;
    let [id, info, shards] = &replies[..] else { return Err(no_cluster(link)) };
    for reply in [id, info, shards] {
        if let Reply::Error(error) = reply
            && !error.is_unknown_subcommand()
        {
            return Err(error_mapping::refused(link.server(), error, &Asked::Cluster));
        }
    }
    let id = word(id).ok_or_else(|| no_cluster(link))?;
    let epoch = epoch(info).ok_or_else(|| no_cluster(link))?;
    let sharded_channels = !matches!(shards, Reply::Error(_));
    if let Some((shards, nodes)) = read_shards(shards, host, port) {
        return Ok(Shards { id, epoch, shards, nodes, sharded_channels });
    }
    let reply = link.call(&Request(&[&[b"CLUSTER", b"SLOTS"]]), by)?;
    if let Reply::Error(error) = &reply {
        return Err(error_mapping::refused(link.server(), error, &Asked::Cluster));
    }
    let (shards, nodes) = read_slots(&reply, host).ok_or_else(|| no_cluster(link))?;
    Ok(Shards { id, epoch, shards, nodes, sharded_channels })
}

fn no_cluster(link: &mut dyn ConnectionLike) -> Failure {
    link.close();
    Failure::Unknown(link.server().garbage("it does not describe a cluster"))
}

/// The epoch in the reply to `CLUSTER INFO`.
pub(crate) fn epoch(reply: &Reply) -> Option<u64> {
    let text = std::str::from_utf8(reply.as_bytes()?).ok()?;
    info_field(text, "cluster_current_epoch")?.trim().parse().ok()
}

/// The masters that serve slots, and all listed nodes.
type Read = (Vec<Shard>, Vec<(String, Address)>);

/// Parses the reply to `CLUSTER SHARDS` of a node on `teller`. `None` if it is invalid, or names
/// two masters of a slot.
pub(crate) fn read_shards(reply: &Reply, teller: &str, port: Port) -> Option<Read> {
    let (mut shards, mut all) = (Vec::new(), Vec::new());
    for shard in reply.as_array()? {
        let slots = ranges(field(shard, "slots")?.as_array()?)?;
        let nodes = field(shard, "nodes")?.as_array()?;
        let nodes: Vec<_> =
            nodes.iter().map(|node| Node::read(node, teller, port)).collect::<Option<_>>()?;
        all.extend(nodes.iter().map(|node| (node.id.clone(), node.address.clone())));
        if slots.is_empty() {
            continue;
        }
        let best = nodes.iter().filter(|node| node.is_master).map(|node| node.is_well).max()?;
        let mut masters = nodes.iter().filter(|node| node.is_master && node.is_well == best);
        let (master, None) = (masters.next()?, masters.next()) else { return None };
        let replicas = |is_well| {
            let those = nodes.iter().filter(move |it| !it.is_master && it.is_well == is_well);
            those.map(|node| node.address.clone()).collect()
        };
        let (replicas, replicas_down) = (replicas(true), replicas(false));
        let has_no_replica = nodes.iter().all(|node| node.is_master);
        let (id, master) = (master.id.clone(), master.address.clone());
        shards.push(Shard { id, slots, master, replicas, replicas_down, has_no_replica });
    }
    Some((shards, all))
}

/// Parses the reply to `CLUSTER SLOTS`, which omits nodes that are down.
pub(crate) fn read_slots(reply: &Reply, teller: &str) -> Option<Read> {
    let (mut shards, mut all): (Vec<Shard>, Vec<_>) = (Vec::new(), Vec::new());
    for range in reply.as_array()? {
        let [from, to, nodes @ ..] = range.as_array()? else { return None };
        let slots = ranges(&[from.clone(), to.clone()])?;
        let nodes: Vec<_> =
            nodes.iter().map(|node| endpoint(node, teller)).collect::<Option<_>>()?;
        let [(id, master), replicas @ ..] = &nodes[..] else { return None };
        let (id, master) = (id.clone(), master.clone());
        let replicas = replicas.iter().map(|(_, address)| address.clone()).collect();
        for node in nodes {
            if !all.contains(&node) {
                all.push(node);
            }
        }
        if let Some(known) = shards.iter_mut().find(|shard| shard.master == master) {
            known.slots.extend(slots);
            continue;
        }
        let replicas_down = Vec::new();
        shards.push(Shard { id, slots, master, replicas, replicas_down, has_no_replica: false });
    }
    Some((shards, all))
}

struct Node {
    id: String,
    address: Address,
    is_master: bool,
    is_well: bool,
}

impl Node {
    fn read(reply: &Reply, teller: &str, port: Port) -> Option<Self> {
        let word = |name| field(reply, name).and_then(Reply::as_bytes);
        let host = word("endpoint").map_or("".into(), String::from_utf8_lossy);
        let port = match port {
            Port::Plain => field(reply, "port"),
            Port::Tls => field(reply, "tls-port"),
        };
        // A replica without a usable port counts all the same.
        let port = port.map_or(Some(0), number)?;
        Some(Self {
            id: self::word(field(reply, "id")?)?,
            address: Address::new(&host, port).said_by(teller),
            is_master: word("role")? == b"master",
            is_well: !matches!(word("health"), Some(b"fail" | b"failed")),
        })
    }
}

/// `[from, to, from, to, ..]`.
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

/// `[endpoint, port, id, ..]`.
fn endpoint(reply: &Reply, teller: &str) -> Option<(String, Address)> {
    let [host, port, id, ..] = reply.as_array()? else { return None };
    let host = host.as_bytes().map_or("".into(), String::from_utf8_lossy);
    Some((word(id)?, Address::new(&host, number(port)?).said_by(teller)))
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

/// The value of a name in a list of names and values.
fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let mut pairs = reply.as_array()?.chunks(2);
    pairs.find_map(|pair| match pair {
        [key, value] if key.as_bytes() == Some(name.as_bytes()) => Some(value),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    fn list<const N: usize>(items: [Reply; N]) -> Reply {
        Reply::Array(items.into())
    }

    fn node(port: i64, endpoint: Reply, role: &str, health: &str) -> Reply {
        let [id, ip] = [("id", bulk("0123")), ("ip", bulk("10.0.0.9"))].map(|(n, v)| [bulk(n), v]);
        let pairs = [
            id,
            [bulk("port"), Reply::Int(port)],
            [bulk("tls-port"), Reply::Int(port + 1)],
            ip,
            [bulk("endpoint"), endpoint],
            [bulk("role"), bulk(role)],
            [bulk("replication-offset"), Reply::Int(7)],
            [bulk("health"), bulk(health)],
        ];
        Reply::Array(pairs.into_iter().flatten().collect())
    }

    fn shard(slots: &[i64], nodes: Vec<Reply>) -> Reply {
        let slots = Reply::Array(slots.iter().copied().map(Reply::Int).collect());
        list([bulk("slots"), slots, bulk("nodes"), Reply::Array(nodes)])
    }

    #[test]
    fn shards_list_the_replicas_that_are_not_down() {
        let reply = list([
            shard(
                &[0, 1, 5, 5],
                vec![
                    node(2, bulk("b"), "replica", "online"),
                    node(1, bulk("a"), "master", "online"),
                    node(3, bulk("c"), "replica", "loading"),
                    node(4, bulk("d"), "replica", "failed"),
                ],
            ),
            shard(&[], vec![node(5, bulk("e"), "master", "online")]),
        ]);
        let (shards, nodes) = read_shards(&reply, "teller", Port::Plain).unwrap();
        assert_eq!(shards.len(), 1, "a master without slots serves nothing");
        assert_eq!(nodes.len(), 5, "and is known all the same: {nodes:?}");
        assert_eq!((shards[0].id.as_str(), &nodes[4].1), ("0123", &Address::new("e", 5)));
        assert_eq!(shards[0].slots, [0..=1, 5..=5]);
        assert_eq!(shards[0].master, Address::new("a", 1));
        assert_eq!(shards[0].replicas, [Address::new("b", 2), Address::new("c", 3)]);
        assert!(!shards[0].has_no_replica);
        let lonely = |health| vec![node(1, bulk("a"), "master", health)];
        let alone = list([shard(&[0, 1], lonely("online"))]);
        assert!(read_shards(&alone, "x", Port::Plain).unwrap().0[0].has_no_replica);
        let down = [lonely("online"), vec![node(4, bulk("d"), "replica", "failed")]].concat();
        let down = list([shard(&[0, 1], down)]);
        assert!(!read_shards(&down, "x", Port::Plain).unwrap().0[0].has_no_replica);
        let (tls, _) = read_shards(&reply, "teller", Port::Tls).unwrap();
        assert_eq!(tls[0].master, Address::new("a", 2));
    }

    #[test]
    fn node_without_a_host_is_at_the_address_asked() {
        for open in [bulk(""), bulk("?"), Reply::Nil] {
            let reply = list([shard(&[0, 9], vec![node(1, open.clone(), "master", "online")])]);
            let (shards, _) = read_shards(&reply, "::1", Port::Plain).unwrap();
            assert_eq!(shards[0].master.to_string(), "[::1]:1");
            let reply = list([list([
                Reply::Int(0),
                Reply::Int(9),
                list([open, Reply::Int(1), bulk("0123")]),
            ])]);
            assert_eq!(read_slots(&reply, "::1").unwrap().0[0].master.to_string(), "[::1]:1");
        }
    }

    #[test]
    fn shard_with_two_healthy_masters_has_no_known_master() {
        let masters = |health| {
            let nodes = [("a", health), ("b", "online")];
            let nodes = nodes.map(|(host, health)| node(1, bulk(host), "master", health));
            read_shards(&list([shard(&[0, 1], nodes.into())]), "x", Port::Plain)
        };
        assert_eq!(masters("fail").unwrap().0[0].master.host, "b");
        assert_eq!(masters("online"), None);
    }

    #[test]
    fn slot_ranges_of_one_master_are_joined() {
        let at = |host, port| list([bulk(host), Reply::Int(port), bulk("0123"), list([])]);
        let range = |from, to, master: &Reply, replica: &Reply| {
            list([Reply::Int(from), Reply::Int(to), master.clone(), replica.clone()])
        };
        let (a, b, c) = (at("a", 1), at("b", 2), at("c", 3));
        let reply = list([range(0, 4, &a, &b), range(5, 5, &c, &b), range(6, 16_383, &a, &b)]);
        let (shards, nodes) = read_slots(&reply, "x").unwrap();
        assert_eq!(nodes.len(), 3);
        assert_eq!(shards.len(), 2);
        assert_eq!(shards[0].slots, [0..=4, 6..=16_383]);
        assert_eq!(shards[0].replicas, [Address::new("b", 2)]);
        assert_eq!(read_slots(&list([range(0, 16_384, &a, &b)]), "x"), None);
    }

    #[test]
    fn epoch_is_read_from_cluster_info() {
        let info = bulk("cluster_state:ok\r\ncluster_current_epoch:12\r\ncluster_my_epoch:3\r\n");
        assert_eq!(epoch(&info), Some(12));
        assert_eq!(epoch(&bulk("x")), None);
    }

    #[test]
    fn addresses_are_parsed_with_and_without_brackets() {
        for (text, host) in
            [("a.example:1", "a.example"), ("[::1]:1", "::1"), ("fe80::2:1", "fe80::2"), (":1", "")]
        {
            assert_eq!(Address::parse(text), Some(Address::new(host, 1)), "{text}");
        }
        for text in ["a", "a:", "a:0", "a:65536", "a:x"] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }
}
