//! [`Cluster`]: a Redis Cluster of three masters with a replica each.

mod moves;

use super::addresses;
use super::distance::{Network, Reach};
use super::probe::{Probe, Value};
use super::process::RedisServer;
use super::rights;
use super::time::eventually;
use super::time_of_day::TimeOfDay;
use super::version::is_before_7;
use lock_core::{Clock, SystemClock};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The number of hash slots of a cluster.
pub const SLOTS: u16 = 16_384;

const MASTERS: usize = 3;

/// The number of the loopback address of the first node, in a cluster whose nodes have different
/// addresses.
const FIRST_ADDRESS: u8 = 21;

/// The longest time until the nodes agree, so that a slow machine fails no test. Measured: 2 to 4 s
/// until all nodes know each replica.
const AGREEMENT: Duration = Duration::from_secs(120);

/// The longest time until a replica replaces a dead master, so that a slow machine fails no test.
/// Measured: 2 to 3 s.
pub const TAKEOVER: Duration = Duration::from_secs(60);

/// Six nodes, each on a port of its own, which are killed when the test process ends. At first the
/// nodes 0 to 2 are masters, and node `n + 3` is the replica of node `n`. Later roles are read from
/// the nodes.
pub struct Cluster {
    nodes: Vec<RedisServer>,
}

/// The way in which a replica replaces its master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failover {
    /// The master agrees, and stops clients until the replica has all its data.
    Plain,
    /// The other masters elect the replica; the replaced master is not involved.
    Force,
    /// The replica promotes itself without an election.
    Takeover,
}

/// The arguments with which a replica replaces a master that does not answer for two seconds.
const REPLACES: [&str; 4] = [
    "--cluster-node-timeout",
    "2000",
    "--cluster-replica-no-failover",
    "no",
];

/// The settings while the cluster forms: nodes exchange messages often, and no master is replaced
/// because it is busy.
const FORMING: [[&str; 2]; 2] = [
    ["cluster-node-timeout", "1500"],
    ["cluster-replica-no-failover", "yes"],
];

/// The arguments of every node: no master is replaced unless the test starts a failover. The master
/// pings its replicas each second, because `CLUSTER SLOTS` lists a replica only after it has
/// received something, and a test may write nothing.
const SETTINGS: [&str; 8] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "3000",
    "--cluster-replica-no-failover",
    "yes",
    "--repl-ping-replica-period",
    "1",
];

/// One node's view of the cluster: the slots and the replicas of each master, by the master's port.
#[derive(Clone, PartialEq, Eq, Debug)]
struct View(BTreeMap<u16, Shard>);

/// The answers of the nodes that do not name the awaited owner of a slot. Printed if the test fails
/// while it waits for that owner.
struct Said {
    slot: u16,
    port: u16,
    nodes: Vec<String>,
}

impl Drop for Said {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "slot {} is not that of {} by the word of {:#?}",
                self.slot, self.port, self.nodes
            );
        }
    }
}

/// The slot ranges of a master, each as its first and last slot, and the ports of its replicas.
type Shard = (BTreeSet<(i64, i64)>, BTreeSet<u16>);

impl Cluster {
    /// Returns the cluster that is shared by tests that do not disturb it. Each test uses names of
    /// its own.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        let cluster = Arc::new(Self::steady());
        *shared = Arc::downgrade(&cluster);
        cluster
    }

    /// Starts a cluster for one test, which replaces a dead master after two seconds.
    pub fn start() -> Self {
        Self::start_with(&REPLACES)
    }

    /// Starts a cluster for one test, in which a master is replaced only by [`Self::fail_over`].
    pub fn steady() -> Self {
        Self::start_with(&[])
    }

    /// Starts a cluster as [`Self::steady`] does, with these additional arguments of each node.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_each(|_| {
            arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect()
        })
    }

    /// Returns the arguments with which [`Self::start`] replaces masters, for callers that add
    /// more.
    pub fn replacing() -> [&'static str; 4] {
        REPLACES
    }

    /// Starts a cluster as [`Self::start`] does, in which node `n` and the following ones run on
    /// these clocks.
    pub fn start_on(n: usize, clocks: &[&TimeOfDay]) -> Self {
        let clock = |number: usize| clocks.get(number.checked_sub(n)?).copied();
        Self::launch(|_| REPLACES.map(str::to_owned).to_vec(), clock)
    }

    /// Starts a cluster as [`Self::steady`] does, with additional arguments by the number of the
    /// node.
    pub fn start_each(arguments: impl FnMut(usize) -> Vec<String>) -> Self {
        Self::launch(arguments, |_| None)
    }

    fn launch<'a>(
        mut arguments: impl FnMut(usize) -> Vec<String>,
        clock: impl Fn(usize) -> Option<&'a TimeOfDay>,
    ) -> Self {
        let mut settings = SETTINGS.to_vec();
        // A replica may replace its master however long it has received nothing from it. On a busy
        // machine that may be long, and by default such a replica is not promoted.
        settings.extend(["--cluster-replica-validity-factor", "0"]);
        settings.extend(["--repl-diskless-sync-delay", "0"]);
        let start = |number| {
            let own = arguments(number);
            let all: Vec<_> = settings
                .iter()
                .copied()
                .chain(own.iter().map(String::as_str))
                .collect();
            RedisServer::start_cluster_node_on(&all, clock(number))
        };
        let cluster = Self {
            nodes: (0..2 * MASTERS).map(start).collect(),
        };
        let own: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| node.configure(FORMING))
            .collect();
        cluster.form();
        for (node, own) in cluster.nodes.iter().zip(own) {
            node.configure(
                own.each_ref()
                    .map(|pair| pair.each_ref().map(String::as_str)),
            );
        }
        cluster
    }

    /// Starts a cluster as [`Self::start_each`] does, with node `n` on the loopback address
    /// 127.0.0.(21 + `n`). [`Self::url_at`] returns its URL.
    pub fn start_apart(mut arguments: impl FnMut(usize) -> Vec<String>) -> Self {
        Self::start_each(|number| {
            let apart = addresses::arguments(Self::address(number), "--cluster-announce-ip");
            [apart, arguments(number)].concat()
        })
    }

    /// Returns the number of the loopback address of this node in [`Self::start_apart`].
    pub fn address(number: usize) -> u8 {
        FIRST_ADDRESS + u8::try_from(number).expect("a cluster has few nodes")
    }

    fn form(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let mut probe = node.probe();
            ok(
                &mut probe,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()],
            );
            if number < MASTERS {
                let is_own =
                    |slot: &u16| usize::from(*slot) * MASTERS / usize::from(SLOTS) == number;
                add_slots(&mut probe, (0..SLOTS).filter(is_own));
            }
        }
        self.nodes
            .iter()
            .skip(1)
            .for_each(|node| self.introduce(node));
        for (number, node) in self.nodes.iter().enumerate().skip(MASTERS) {
            let master = self.id(number - MASTERS);
            let mut probe = node.probe();
            eventually("a replica knows its master", AGREEMENT, || {
                probe.command(&["CLUSTER", "REPLICATE", &master]) == Value::Text("OK".to_owned())
            });
        }
        self.wait_until_agreed(2 * MASTERS);
    }

    /// Makes a node meet the first one, and waits until the first one knows it. Starts the
    /// handshake again every three seconds, because on a busy machine it may exceed the nodes' own
    /// time-out.
    fn introduce(&self, node: &RedisServer) {
        const HANDSHAKE: Duration = Duration::from_secs(3);
        let (first, id) = (
            &self.nodes[0],
            node.probe().command(&["CLUSTER", "MYID"]).text(),
        );
        let [port, bus] = [first.port(), first.bus_port()].map(|port| port.to_string());
        let mut again = SystemClock.now();
        eventually("a node is known to the first one", AGREEMENT, || {
            if SystemClock.now() >= again {
                ok(
                    &mut node.probe(),
                    &["CLUSTER", "MEET", "127.0.0.1", &port, &bus],
                );
                again = SystemClock.now() + HANDSHAKE;
            }
            let known = first.probe().command(&["CLUSTER", "NODES"]).text();
            known
                .lines()
                .any(|line| line.contains(&id) && !line.contains("handshake"))
        });
    }

    /// Waits until all running nodes have the same view of `nodes` nodes, all slots are served, and
    /// each replica is connected to its master.
    pub fn wait_until_agreed(&self, nodes: usize) {
        eventually("the nodes agree", AGREEMENT, || {
            let mut views = Vec::new();
            for node in self.running() {
                let mut probe = Probe::try_connect(node.port()).ok()?;
                if info(&mut probe, "cluster_state")? != "ok" {
                    return None;
                }
                let role = probe.try_command(&["ROLE"]).ok()?;
                if let Value::List(role) = role
                    && role[0] == Value::Text("slave".to_owned())
                    && role[3] != Value::Text("connected".to_owned())
                {
                    return None;
                }
                views.push(View::of(&mut probe)?);
            }
            let agreed = views.windows(2).all(|two| two[0] == two[1]);
            let known: usize = views
                .first()?
                .0
                .values()
                .map(|(_, replicas)| 1 + replicas.len())
                .sum();
            (agreed && known == nodes).then_some(())
        });
    }

    /// Returns a URL with the first two nodes, for the user with the least rights.
    pub fn url(&self) -> String {
        self.url_of(&[0, 1])
    }

    /// Makes this user (`user:password`) with these rights known to every node, and returns the URL
    /// of [`Self::url`] for it.
    pub fn url_as(&self, login: &str, rights: &[&str]) -> String {
        let user = login.split(':').next().unwrap_or_default();
        let rights = rights::known(rights.to_vec());
        for node in self.running() {
            ok(
                &mut node.probe(),
                &[&["ACL", "SETUSER", user], &rights[..]].concat(),
            );
        }
        self.url().replace(rights::LOGIN, login)
    }

    /// Returns a URL with these nodes, for the user with the least rights.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        self.url_at(nodes, |_| "127.0.0.1".to_owned())
    }

    /// Returns a URL with these nodes. `host` makes the host of a node from the number of its
    /// [`address`](Self::address), as [`addresses::loopback`] and [`addresses::name`] do.
    pub fn url_at(&self, nodes: &[usize], host: impl Fn(u8) -> String) -> String {
        let place = |&node: &usize| (host(Self::address(node)), self.nodes[node].port());
        url(nodes.iter().map(place))
    }

    /// Returns a URL of all nodes through this network, which must have been made by
    /// [`Self::network`]. Its option `address_map` keeps the client on the network; more options
    /// may be appended with `&`.
    pub fn url_over(&self, network: &Network) -> String {
        let hosts = network
            .ports()
            .into_iter()
            .map(|port| ("127.0.0.1".to_owned(), port));
        format!("{}?{}", url(hosts), network.address_map())
    }

    /// Makes a network to all nodes, in which node `n` has the reach `reach(n)`.
    pub fn network(&self, reach: impl Fn(usize) -> Reach) -> Network {
        Network::new(
            self.nodes
                .iter()
                .enumerate()
                .map(|(at, node)| (node.port(), reach(at))),
        )
    }

    pub fn node(&self, number: usize) -> &RedisServer {
        &self.nodes[number]
    }

    pub fn node_mut(&mut self, number: usize) -> &mut RedisServer {
        &mut self.nodes[number]
    }

    /// Returns the number of nodes, running or not.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Adds a node, a master without slots, and returns its number.
    pub fn add(&mut self) -> usize {
        let node = RedisServer::start_cluster_node(&SETTINGS);
        self.introduce(&node);
        self.nodes.push(node);
        let (number, id) = (self.nodes.len() - 1, self.id(self.nodes.len() - 1));
        for node in self.running() {
            eventually(
                "all know the new node, and it knows them",
                AGREEMENT,
                || {
                    let mut probe = node.probe();
                    info(&mut probe, "cluster_state").is_some_and(|state| state == "ok")
                        && probe.command(&["CLUSTER", "NODES"]).text().contains(&id)
                },
            );
        }
        number
    }

    /// Kills this node, and makes all other nodes forget it.
    pub fn remove(&mut self, number: usize) {
        let id = self.id(number);
        self.nodes[number].kill();
        for node in self.running() {
            ok(&mut node.probe(), &["CLUSTER", "FORGET", &id]);
        }
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    pub fn id(&self, number: usize) -> String {
        self.nodes[number]
            .probe()
            .command(&["CLUSTER", "MYID"])
            .text()
    }

    /// Returns the slot of a key, as a node computes it.
    pub fn slot(&self, key: &str) -> u16 {
        let mut probe = self.running().next().expect("a node runs").probe();
        u16::try_from(probe.command(&["CLUSTER", "KEYSLOT", key]).int()).unwrap()
    }

    /// Returns the node that by its own view serves this slot.
    pub fn owner(&self, slot: u16) -> usize {
        self.find_owner(slot)
            .unwrap_or_else(|| panic!("no node serves the slot {slot}"))
    }

    pub fn find_owner(&self, slot: u16) -> Option<usize> {
        self.nodes.iter().position(|node| {
            let view = node
                .is_running()
                .then(|| Probe::try_connect(node.port()).ok())
                .flatten();
            let view = view.and_then(|mut probe| View::of(&mut probe));
            view.is_some_and(|view| view.serves(node.port(), slot))
        })
    }

    /// Returns a name that begins with `before` and belongs to a slot of this node.
    pub fn name_on(&self, node: usize, before: &str) -> String {
        let mut probe = self.nodes[node].probe();
        let view = View::of(&mut probe).expect("the node knows what it serves");
        let served: BTreeSet<_> = view.slots(self.nodes[node].port()).collect();
        let mut names = (0..).map(|number| format!("{before}:{number}"));
        let lives = |name: &String| {
            let slot = probe.command(&["CLUSTER", "KEYSLOT", name]).int();
            served.contains(&u16::try_from(slot).unwrap())
        };
        names
            .find(lives)
            .expect("one of a few names lives in a third of the slots")
    }

    /// Waits until a replica of this node has all of its data.
    pub fn wait_for_replicas(&self, master: usize) {
        let offset = |node: &RedisServer| {
            let field = node.probe().info_field("replication", "master_repl_offset");
            field.and_then(|offset| offset.parse::<i64>().ok())
        };
        let replica = self.replica_of(master);
        eventually("the replica has everything", AGREEMENT, || {
            offset(&self.nodes[replica]) >= offset(&self.nodes[master])
        });
    }

    /// Closes the connection of this node's replica, which must be paused already, so that the
    /// replica gets no later write.
    pub fn cut_off_replicas(&self, master: usize) {
        let killed = self.nodes[master]
            .probe()
            .command(&["CLIENT", "KILL", "TYPE", "replica"]);
        assert_eq!(killed, Value::Int(1));
    }

    /// Returns how often the running nodes have answered with this error code, as in `MOVED`, since
    /// they were started.
    pub fn errors(&self, code: &str) -> u64 {
        let field = format!("errorstat_{code}");
        let stats = self
            .running()
            .map(|node| node.probe().info_field("errorstats", &field));
        let counts = stats
            .map(|stats| stats.and_then(|stats| stats.strip_prefix("count=")?.parse::<u64>().ok()));
        counts.map(Option::unwrap_or_default).sum()
    }

    /// Returns the node that serves this key.
    pub fn owner_of(&self, key: &str) -> usize {
        self.owner(self.slot(key))
    }

    /// Returns a replica of this node, as a running node lists it.
    pub fn replica_of(&self, master: usize) -> usize {
        let port = self.nodes[master].port();
        let mut probe = self.running().next().expect("a node runs").probe();
        eventually("the master has a replica", AGREEMENT, || {
            let view = View::of(&mut probe)?;
            let replica = *view.0.get(&port)?.1.first()?;
            self.nodes.iter().position(|node| node.port() == replica)
        })
    }

    /// Waits until all running nodes list a replica of this node.
    pub fn await_listing(&self, master: usize) {
        let port = self.nodes[master].port();
        eventually("all know of a replica", AGREEMENT, || {
            self.running().all(|node| {
                let view = View::of(&mut node.probe());
                view.is_some_and(|view| view.0.get(&port).is_some_and(|it| !it.1.is_empty()))
            })
        });
    }

    /// Connects the test itself to the node that serves this key.
    pub fn probe(&self, key: &str) -> Probe {
        self.nodes[self.owner_of(key)].probe()
    }

    /// Makes a replica of `master` replace it, and waits until all running nodes know that. Returns
    /// the replica.
    pub fn fail_over(&self, master: usize, how: Failover) -> usize {
        let replica = self.replica_of(master);
        let words: &[&str] = match how {
            Failover::Plain => &["CLUSTER", "FAILOVER"],
            Failover::Force => &["CLUSTER", "FAILOVER", "FORCE"],
            Failover::Takeover => &["CLUSTER", "FAILOVER", "TAKEOVER"],
        };
        let slots = View::of(&mut self.nodes[master].probe());
        let slot = slots.and_then(|view| view.slots(self.nodes[master].port()).next());
        let slot = slot.expect("a master has slots");
        // On a busy machine the failover may exceed the five seconds that the nodes allow: then it
        // is started again.
        for _ in 0..TAKEOVER.as_secs() / 6 {
            ok(&mut self.nodes[replica].probe(), words);
            let until = SystemClock.now() + Duration::from_secs(6);
            eventually(
                "the replica takes over, or its time is over",
                TAKEOVER,
                || self.find_owner(slot) == Some(replica) || SystemClock.now() >= until,
            );
            if self.find_owner(slot) == Some(replica) {
                break;
            }
        }
        self.wait_for_owner(slot, replica);
        replica
    }

    /// Waits until in the view of all running nodes `node` serves the slot.
    pub fn wait_for_owner(&self, slot: u16, node: usize) {
        self.wait_for_owner_but(slot, node, None);
    }

    /// Waits as [`Self::wait_for_owner`] does, without the node `apart`, which cannot be reached.
    pub fn wait_for_owner_but(&self, slot: u16, node: usize, apart: Option<usize>) {
        let port = self.nodes[node].port();
        let apart = apart.map(|apart| self.nodes[apart].port());
        let mut said = Said {
            slot,
            port,
            nodes: Vec::new(),
        };
        eventually("all nodes know the owner of the slot", TAKEOVER, || {
            said.nodes.clear();
            for node in self.running().filter(|node| Some(node.port()) != apart) {
                let mut probe = node.probe();
                if !View::of(&mut probe).is_some_and(|view| view.serves(port, slot)) {
                    let known = probe.command(&["CLUSTER", "NODES"]);
                    said.nodes.push(format!("{}: {known:?}", node.port()));
                }
            }
            said.nodes.is_empty()
        });
    }

    /// Waits until in the view of all running nodes another node than `old` serves the slot, and
    /// returns that node.
    pub fn await_other_than(&self, old: usize, slot: u16) -> usize {
        let new = eventually("the slot has another node", TAKEOVER, || {
            self.find_owner(slot).filter(|new| *new != old)
        });
        self.wait_for_owner(slot, new);
        new
    }

    /// Returns the slots that a node serves.
    pub fn slots_of(&self, node: usize) -> Vec<u16> {
        let view = View::of(&mut self.nodes[node].probe()).expect("it knows what it serves");
        view.slots(self.nodes[node].port()).collect()
    }
}

impl View {
    /// Returns the slots that the node on this port serves.
    fn slots(&self, port: u16) -> impl Iterator<Item = u16> {
        let ranges = self.0.get(&port).into_iter().flat_map(|(slots, _)| slots);
        ranges
            .flat_map(|(from, to)| *from..=*to)
            .filter_map(|slot| slot.try_into().ok())
    }

    fn serves(&self, port: u16, slot: u16) -> bool {
        self.slots(port).any(|served| served == slot)
    }

    fn of(probe: &mut Probe) -> Option<Self> {
        let Value::List(ranges) = probe.try_command(&["CLUSTER", "SLOTS"]).ok()? else {
            return None;
        };
        let mut view = BTreeMap::new();
        for range in ranges {
            let Value::List(range) = range else {
                return None;
            };
            let [Value::Int(from), Value::Int(to), nodes @ ..] = &range[..] else {
                return None;
            };
            let mut ports = nodes.iter().map(|node| match node {
                Value::List(node) => match node[..] {
                    [_, Value::Int(port), ..] => u16::try_from(port).ok(),
                    _ => None,
                },
                _ => None,
            });
            let master = ports.next()??;
            let (slots, replicas): &mut Shard = view.entry(master).or_default();
            slots.insert((*from, *to));
            replicas.extend(ports.flatten());
        }
        Some(Self(view))
    }
}

fn info(probe: &mut Probe, field: &str) -> Option<String> {
    let Value::Text(info) = probe.try_command(&["CLUSTER", "INFO"]).ok()? else {
        return None;
    };
    let mut lines = info.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(name, _)| *name == field)
        .map(|(_, value)| value.trim().to_owned())
}

/// Returns a URL with these hosts, for the user with the least rights.
fn url(places: impl Iterator<Item = (String, u16)>) -> String {
    let hosts: Vec<_> = places
        .map(|(host, port)| format!("{host}:{port}"))
        .collect();
    format!("redis+cluster://{}@{}", rights::LOGIN, hosts.join(","))
}

/// Returns how often a node has run `CLUSTER SHARDS`. Redis 6 does not count subcommands: there it
/// is the number of all `CLUSTER` commands.
pub fn map_requests(probe: &mut Probe) -> u64 {
    probe.command_calls(if is_before_7() {
        "cluster"
    } else {
        "cluster|shards"
    })
}

/// Makes this node a cluster of one node, and waits until it serves all slots.
pub fn serve_all_slots(node: &RedisServer) {
    let mut probe = node.probe();
    add_slots(&mut probe, 0..SLOTS);
    eventually("the cluster is up", Duration::from_secs(60), || {
        info(&mut probe, "cluster_state").as_deref() == Some("ok")
    });
}

fn add_slots(probe: &mut Probe, slots: impl Iterator<Item = u16>) {
    let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
    let words: Vec<_> = slots.iter().map(String::as_str).collect();
    ok(probe, &[&["CLUSTER", "ADDSLOTS"], &words[..]].concat());
}

#[track_caller]
fn ok(probe: &mut Probe, words: &[&str]) {
    let answer = probe.command(words);
    let shown = words.iter().take(5).copied().collect::<Vec<_>>().join(" ");
    assert_eq!(answer, Value::Text("OK".to_owned()), "{shown}");
}
