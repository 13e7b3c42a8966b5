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

/// How many hash slots there are.
pub const SLOTS: u16 = 16_384;

const MASTERS: usize = 3;

/// The loopback address of the first node of a cluster whose nodes have different ones.
const FIRST_ADDRESS: u8 = 21;

/// How long the nodes may take to agree. Measured: 2 to 4 s until all know each replica.
const AGREEMENT: Duration = Duration::from_secs(120);

/// How long a cluster may take to put a replica in the place of a master that is gone. Measured: 2
/// to 3 s.
pub const TAKEOVER: Duration = Duration::from_secs(60);

/// Six nodes on ports of their own, killed with us. Node `n` is one of the first masters below
/// three, and `n + 3` its first replica. Later roles are read from the nodes.
pub struct Cluster {
    nodes: Vec<RedisServer>,
}

/// How a replica takes its master's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failover {
    /// The master agrees, and waits until the replica has everything.
    Plain,
    /// The others agree; the master is not asked.
    Force,
    /// No node is asked.
    Takeover,
}

/// What makes a replica take the place of a master that says nothing for two seconds.
const REPLACES: [&str; 4] = [
    "--cluster-node-timeout",
    "2000",
    "--cluster-replica-no-failover",
    "no",
];

/// What holds while the cluster forms: nodes speak often with each other, and no master is replaced
/// because it is busy.
const FORMING: [[&str; 2]; 2] = [
    ["cluster-node-timeout", "1500"],
    ["cluster-replica-no-failover", "yes"],
];

/// What every node is started with: no master is replaced unless the test asks for it. A replica is
/// not shown by `CLUSTER SLOTS` before it has got something from its master, which with nothing
/// written is the master's ping.
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

/// The view of one node: which port serves which slots, and which ports replicate it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct View(BTreeMap<u16, Shard>);

/// What the nodes said that did not name the right owner of a slot, to be shown where a test waits
/// in vain.
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

/// The slots of a master, from and to, and the ports of its replicas.
type Shard = (BTreeSet<(i64, i64)>, BTreeSet<u16>);

impl Cluster {
    /// The one that tests share which do no harm to it. Each uses names of its own.
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

    /// One of the test's own, which soon replaces a master that is gone.
    pub fn start() -> Self {
        Self::start_with(&REPLACES)
    }

    /// One of the test's own in which no master is replaced unless a replica is told to.
    pub fn steady() -> Self {
        Self::start_with(&[])
    }

    /// The same as [`Self::steady`] with more on the command line of each node.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_each(|_| {
            arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect()
        })
    }

    /// What makes [`Self::start`] replace masters, for those that add to it.
    pub fn replacing() -> [&'static str; 4] {
        REPLACES
    }

    /// The same as [`Self::start`] with the nodes `n` and up on these clocks.
    pub fn start_on(n: usize, clocks: &[&TimeOfDay]) -> Self {
        let clock = |number: usize| clocks.get(number.checked_sub(n)?).copied();
        Self::launch(|_| REPLACES.map(str::to_owned).to_vec(), clock)
    }

    /// The same with more for each node of its own.
    pub fn start_each(arguments: impl FnMut(usize) -> Vec<String>) -> Self {
        Self::launch(arguments, |_| None)
    }

    fn launch<'a>(
        mut arguments: impl FnMut(usize) -> Vec<String>,
        clock: impl Fn(usize) -> Option<&'a TimeOfDay>,
    ) -> Self {
        let mut settings = SETTINGS.to_vec();
        // A replica is good for its master's place however long it has not heard of it: on a busy
        // machine that is long.
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

    /// Node `n` on the loopback address 127.0.0.(21 + `n`), with more for each of its own. Its URL
    /// is [`Self::url_at`].
    pub fn start_apart(mut arguments: impl FnMut(usize) -> Vec<String>) -> Self {
        Self::start_each(|number| {
            let apart = addresses::arguments(Self::address(number), "--cluster-announce-ip");
            [apart, arguments(number)].concat()
        })
    }

    /// The number of the loopback address of this node in [`Self::start_apart`].
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

    /// Has a node meet the first one, and waits until both know each other. On a busy machine a
    /// handshake may not be done in the time that it is given: then once more.
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

    /// Waits until every node that runs says the same, all slots are served, and `nodes` are there,
    /// those replicas in sync with their masters.
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

    /// `redis+cluster://`, with two of the nodes, for the user with the least rights.
    pub fn url(&self) -> String {
        self.url_of(&[0, 1])
    }

    /// The same for `user:password`, whom every node is made to know, with these rights.
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

    /// The same with these nodes.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        self.url_at(nodes, |_| "127.0.0.1".to_owned())
    }

    /// The same with these nodes, each at the host that `host` makes of the number of its
    /// [`address`](Self::address), as [`addresses::loopback`] and [`addresses::name`] do.
    pub fn url_at(&self, nodes: &[usize], host: impl Fn(u8) -> String) -> String {
        let place = |&node: &usize| (host(Self::address(node)), self.nodes[node].port());
        url(nodes.iter().map(place))
    }

    /// The same over a network whose servers are all nodes, in their order, with the option that
    /// keeps the client on it, and room for more behind it.
    pub fn url_over(&self, network: &Network) -> String {
        let hosts = network
            .ports()
            .into_iter()
            .map(|port| ("127.0.0.1".to_owned(), port));
        format!("{}?{}", url(hosts), network.address_map())
    }

    /// A network to all nodes, the `n`th of which is reached as `reach` says of `n`.
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

    /// How many nodes there are, running or not.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// One node more, a master without slots.
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

    /// Has all forget this node, and kills it.
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

    /// The slot of a key, by the word of a node.
    pub fn slot(&self, key: &str) -> u16 {
        let mut probe = self.running().next().expect("a node runs").probe();
        u16::try_from(probe.command(&["CLUSTER", "KEYSLOT", key]).int()).unwrap()
    }

    /// Which node serves this slot, by the word of the nodes themselves: the one that says so of
    /// itself, if there is one.
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

    /// A name that begins with `before` and lives on this node.
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

    /// Waits until the replicas of this node have everything that it has.
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

    /// From now on nothing that this node writes gets to its replica, which is to be paused
    /// already.
    pub fn cut_off_replicas(&self, master: usize) {
        let killed = self.nodes[master]
            .probe()
            .command(&["CLIENT", "KILL", "TYPE", "replica"]);
        assert_eq!(killed, Value::Int(1));
    }

    /// How often the nodes redirected a client since they were started, by the first word of the
    /// error.
    pub fn errors(&self, code: &str) -> u64 {
        let field = format!("errorstat_{code}");
        let stats = self
            .running()
            .map(|node| node.probe().info_field("errorstats", &field));
        let counts = stats
            .map(|stats| stats.and_then(|stats| stats.strip_prefix("count=")?.parse::<u64>().ok()));
        counts.map(Option::unwrap_or_default).sum()
    }

    /// The node that serves this key.
    pub fn owner_of(&self, key: &str) -> usize {
        self.owner(self.slot(key))
    }

    /// A replica of this node, by the word of the node itself.
    pub fn replica_of(&self, master: usize) -> usize {
        let port = self.nodes[master].port();
        let mut probe = self.running().next().expect("a node runs").probe();
        eventually("the master has a replica", AGREEMENT, || {
            let view = View::of(&mut probe)?;
            let replica = *view.0.get(&port)?.1.first()?;
            self.nodes.iter().position(|node| node.port() == replica)
        })
    }

    /// Waits until all nodes that run list a replica of this one.
    pub fn await_listing(&self, master: usize) {
        let port = self.nodes[master].port();
        eventually("all know of a replica", AGREEMENT, || {
            self.running().all(|node| {
                let view = View::of(&mut node.probe());
                view.is_some_and(|view| view.0.get(&port).is_some_and(|it| !it.1.is_empty()))
            })
        });
    }

    /// A connection of the test's own to the node that serves this key.
    pub fn probe(&self, key: &str) -> Probe {
        self.nodes[self.owner_of(key)].probe()
    }

    /// Puts a replica of `master` into its place, and waits until it serves the slots. Returns the
    /// replica.
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
        // On a busy machine it may not be done in the five seconds that it is given: then once
        // more.
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

    /// Waits until all nodes that run say that `node` serves the slot.
    pub fn wait_for_owner(&self, slot: u16, node: usize) {
        self.wait_for_owner_but(slot, node, None);
    }

    /// The same with one that cannot be asked.
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

    /// Waits until all nodes that run say that another node than this one serves the slot. Which.
    pub fn await_other_than(&self, old: usize, slot: u16) -> usize {
        let new = eventually("the slot has another node", TAKEOVER, || {
            self.find_owner(slot).filter(|new| *new != old)
        });
        self.wait_for_owner(slot, new);
        new
    }

    /// The slots that a node serves.
    pub fn slots_of(&self, node: usize) -> Vec<u16> {
        let view = View::of(&mut self.nodes[node].probe()).expect("it knows what it serves");
        view.slots(self.nodes[node].port()).collect()
    }
}

impl View {
    /// The slots that the node on this port serves.
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

/// `redis+cluster://`, with these hosts, for the user with the least rights.
fn url(places: impl Iterator<Item = (String, u16)>) -> String {
    let hosts: Vec<_> = places
        .map(|(host, port)| format!("{host}:{port}"))
        .collect();
    format!("redis+cluster://{}@{}", rights::LOGIN, hosts.join(","))
}

/// How often a node was asked for the slot map; on Redis 6, which counts no parts of commands, how
/// often for anything of the cluster.
pub fn map_requests(probe: &mut Probe) -> u64 {
    probe.command_calls(if is_before_7() {
        "cluster"
    } else {
        "cluster|shards"
    })
}

/// Makes a cluster of this node alone, and waits until it serves all slots.
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
