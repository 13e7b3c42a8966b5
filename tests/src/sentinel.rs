//! [`Group`]: a master with two replicas, and three sentinels that watch them, for one test.

use super::addresses;
use super::distance::{Network, Reach};
use super::probe::{Probe, Value};
use super::process::RedisServer;
use super::rights::LOGIN;
use super::time::eventually;
use super::time_of_day::TimeOfDay;
use distlock::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the members of a group may take until they all see each other, and how long a failover
/// may take. Measured: about 1 s each.
const BOUND: Duration = Duration::from_secs(30);

/// The silence after which a sentinel considers a server down.
pub const DOWN_AFTER: Duration = Duration::from_millis(1_500);

/// Shorter periods than a sentinel's defaults, for quick failovers. While the master is down,
/// sentinels read a replica's `INFO` once a second, and promote a replica only if its `INFO` is at
/// most five ping periods old; so pings must not be more frequent. At a publish period of 200 ms, a
/// sentinel that had not learned of a failover made the new master a replica again.
const HASTE: [&str; 8] = [
    "info-period",
    "200",
    "ping-period",
    "250",
    "publish-period",
    "400",
    "tilt-period",
    "500",
];

/// By default a master waits for more replicas before it sends any of them its data.
const AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

/// The silence after which a sentinel considers a server down in tests where the master must stay:
/// on a busy machine the master may be silent for a while.
const STEADY: Duration = Duration::from_secs(30);

/// The addresses at which the members of a group announce themselves.
#[derive(Clone, Copy)]
enum Hosts {
    /// All at 127.0.0.1.
    Same,
    /// Server `n` at 127.0.0.(31 + `n`), sentinel `n` at 127.0.0.(41 + `n`).
    Apart,
}

const FIRST_SERVER: u8 = 31;
const FIRST_SENTINEL: u8 = 41;

/// The servers and sentinels of one deployment. The first server begins as master.
pub struct Group {
    /// The master's name: see [`fresh_name`].
    name: String,
    hosts: Hosts,
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

impl Group {
    /// Starts a master, two replicas and three sentinels; returns when all of them see all others.
    pub fn start() -> Self {
        Self::start_with(2, 3)
    }

    /// Starts what [`Self::start`] does, for tests in which the master must stay.
    pub fn steady() -> Self {
        Self::launch(2, 3, STEADY, Hosts::Same, &[])
    }

    /// Starts a master with this many replicas and sentinels.
    pub fn start_with(replicas: usize, sentinels: usize) -> Self {
        Self::launch(replicas, sentinels, DOWN_AFTER, Hosts::Same, &[])
    }

    /// Starts what [`Self::start`] does, each member on a loopback address of its own: server `n`
    /// on 127.0.0.(31 + `n`), sentinel `n` on 127.0.0.(41 + `n`), which [`Self::url_at`] uses.
    pub fn start_apart() -> Self {
        Self::launch(2, 3, DOWN_AFTER, Hosts::Apart, &[])
    }

    /// Starts a master, one replica for each of these clocks, and three sentinels.
    pub fn start_on(clocks: &[&TimeOfDay]) -> Self {
        Self::launch(clocks.len(), 3, DOWN_AFTER, Hosts::Same, clocks)
    }

    /// The sentinels wait for [`STEADY`] until the group is quiet. Otherwise a master that is
    /// silent for a moment could be replaced before the test begins.
    fn launch(
        replicas: usize,
        sentinels: usize,
        down_after: Duration,
        hosts: Hosts,
        clocks: &[&TimeOfDay],
    ) -> Self {
        let name = fresh_name();
        let host = hosts.server(0);
        let master = hosts.start_server(0, &AT_ONCE, None);
        let port = master.port().to_string();
        let mut servers = vec![master];
        for place in 1..=replicas {
            let more = [&["--replicaof", &host, &port], &AT_ONCE[..]].concat();
            servers.push(hosts.start_server(place, &more, clocks.get(place - 1).copied()));
        }
        let settings = settings(&name, &host, servers[0].port(), sentinels, replicas.max(1));
        let start = |place| hosts.start_sentinel(place, &settings);
        let sentinels = (0..sentinels).map(start).collect();
        let group = Self {
            name,
            hosts,
            servers,
            sentinels,
        };
        group.set_periods(&HASTE);
        group.await_quiet(replicas);
        group.set_down_after(down_after);
        group
    }

    /// Starts another deployment whose master has the same name: a master without replicas, and
    /// sentinels that start at this configuration epoch.
    pub fn namesake(&self, sentinels: usize, epoch: u64) -> Self {
        let server = RedisServer::start_with(&AT_ONCE);
        let settings = settings(&self.name, "127.0.0.1", server.port(), sentinels, 1);
        let settings = format!("{settings}sentinel config-epoch {} {epoch}\n", self.name);
        let start = |_| RedisServer::start_sentinel(&settings);
        let sentinels = (0..sentinels).map(start).collect();
        let (name, hosts) = (self.name.clone(), Hosts::Same);
        let group = Self {
            name,
            hosts,
            servers: vec![server],
            sentinels,
        };
        group.set_periods(&HASTE);
        group.await_quiet(0);
        group
    }

    /// Kills this sentinel, and starts another one in its place, with another ID and another port.
    /// Returns when all sentinels know each other.
    pub fn recreate_sentinel(&mut self, place: usize) {
        let master = self.master();
        let (host, port) = (self.hosts.server(master), self.servers[master].port());
        self.sentinels[place].kill();
        let settings = settings(
            &self.name,
            &host,
            port,
            self.sentinels.len(),
            self.servers.len(),
        );
        self.sentinels[place] = self.hosts.start_sentinel(place, &settings);
        self.set_periods(&HASTE);
        let ids: Vec<_> = (0..self.sentinels.len())
            .map(|it| self.sentinel_id(it))
            .collect();
        eventually("the sentinels know each other", BOUND, || {
            let known = |(at, sentinel): (usize, &RedisServer)| {
                let others = sentinel
                    .probe()
                    .command(&["SENTINEL", "SENTINELS", &self.name]);
                let others = each(others);
                let lists = |id: &String| others.iter().any(|other| other["runid"] == *id);
                ids.iter()
                    .enumerate()
                    .all(|(other, id)| other == at || lists(id))
            };
            self.sentinels.iter().enumerate().all(known)
        });
    }

    /// Returns the ID of this sentinel.
    pub fn sentinel_id(&self, place: usize) -> String {
        self.sentinels[place]
            .probe()
            .command(&["SENTINEL", "MYID"])
            .text()
    }

    /// Waits until every sentinel sees all others and this many replicas that are up and follow the
    /// master.
    pub fn await_quiet(&self, replicas: usize) {
        eventually("all sentinels see the same", BOUND, || {
            self.sentinels
                .iter()
                .all(|sentinel| self.is_quiet(sentinel, replicas))
                && (self.sentinels.is_empty() || self.has_everything_at(replicas))
        });
    }

    /// Returns whether this many replicas acknowledge at once all that the master has written. A
    /// replica that is still being filled may be promoted with incomplete data, and a master lists
    /// a replica as online up to a second before it sends new writes to the replica.
    fn has_everything_at(&self, replicas: usize) -> bool {
        let mut probe = self.probe();
        // `PUBLISH` is replicated, and changes no key.
        probe.command(&["PUBLISH", "sync", "now"]);
        probe.command(&["WAIT", &replicas.to_string(), "100"]) == Value::Int(replicas as i64)
    }

    fn is_quiet(&self, sentinel: &RedisServer, replicas: usize) -> bool {
        let mut probe = sentinel.probe();
        let master = about(probe.command(&["SENTINEL", "MASTER", &self.name]));
        let others = (self.sentinels.len() - 1).to_string();
        let up = self.replicas_up(sentinel);
        master.get("flags").is_some_and(|flags| flags == "master")
            && master.get("num-other-sentinels") == Some(&others)
            && up == replicas
            && (replicas == 0 || self.following(&mut probe) == replicas)
    }

    /// Returns how many replicas this sentinel considers up.
    pub fn replicas_up(&self, sentinel: &RedisServer) -> usize {
        let replicas = sentinel
            .probe()
            .command(&["SENTINEL", "REPLICAS", &self.name]);
        each(replicas)
            .iter()
            .filter(|replica| replica["flags"] == "slave")
            .count()
    }

    fn following(&self, probe: &mut Probe) -> usize {
        let replicas = each(probe.command(&["SENTINEL", "REPLICAS", &self.name]));
        replicas
            .iter()
            .filter(|replica| replica["master-link-status"] == "ok")
            .count()
    }

    /// Returns `redis+sentinel://..` with all sentinels, for the user with the least rights on the
    /// servers.
    pub fn url(&self) -> String {
        self.url_of(&self.sentinel_ports())
    }

    /// Returns the URL with the sentinels on these ports of 127.0.0.1.
    pub fn url_of(&self, ports: &[u16]) -> String {
        url(&self.name, ports)
    }

    /// Returns the URL with all sentinels at other hosts: `host` makes each host from the number of
    /// the sentinel's loopback address, as [`addresses::loopback`] and [`addresses::name`] do.
    pub fn url_at(&self, host: impl Fn(u8) -> String) -> String {
        let place = |(at, port): (usize, u16)| (host(nth(FIRST_SENTINEL, at)), port);
        url_with(
            &self.name,
            self.sentinel_ports().into_iter().enumerate().map(place),
        )
    }

    /// Makes a network to all sentinels, in which sentinel `n` is reached as `reach` of `n` says.
    /// Its ports are for [`Self::url_of`].
    pub fn network(&self, reach: impl Fn(usize) -> Reach) -> Network {
        Network::new(
            self.sentinel_ports()
                .into_iter()
                .enumerate()
                .map(|(at, port)| (port, reach(at))),
        )
    }

    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(RedisServer::port).collect()
    }

    /// Returns the master's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the port of the master that each sentinel names; without the sentinels that do not
    /// answer.
    pub fn named(&self) -> Vec<u16> {
        self.sentinels
            .iter()
            .filter_map(|sentinel| self.named_by(sentinel))
            .collect()
    }

    /// Returns the port of the master that this sentinel names; `None` if the sentinel does not
    /// answer.
    pub fn named_by_sentinel(&self, place: usize) -> Option<u16> {
        self.named_by(&self.sentinels[place])
    }

    fn named_by(&self, sentinel: &RedisServer) -> Option<u16> {
        let mut probe = Probe::try_connect(sentinel.port()).ok()?;
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name];
        probe
            .try_command(&question)
            .ok()?
            .texts()
            .get(1)?
            .parse()
            .ok()
    }

    /// Returns the number of the server that most of the running sentinels name as master.
    pub fn master(&self) -> usize {
        let mut votes = BTreeMap::<u16, usize>::new();
        for port in self.named() {
            *votes.entry(port).or_default() += 1;
        }
        let (port, _) = votes
            .into_iter()
            .max_by_key(|(_, votes)| *votes)
            .expect("one answers");
        self.place_of(port)
    }

    fn place_of(&self, port: u16) -> usize {
        self.servers
            .iter()
            .position(|server| server.port() == port)
            .expect("it is one of ours")
    }

    /// Connects to the present master.
    pub fn probe(&self) -> Probe {
        self.servers[self.master()].probe()
    }

    /// Waits until all sentinels that answer name the same new master, and that server says that it
    /// is a master. Returns its number.
    pub fn await_other_than(&self, old: usize) -> usize {
        eventually("there is another master", BOUND, || {
            let mut named = self.named();
            named.dedup();
            let [port] = named[..] else { return None };
            let new = self.place_of(port);
            (new != old && is_master(&self.servers[new])).then_some(new)
        })
    }

    /// Kills the master, and lets it be replaced only after all sentinels see this many replicas
    /// up. So a replica that was away a moment ago may be promoted, too. Returns the new master's
    /// number.
    pub fn replace_killed(
        &mut self,
        old: usize,
        replicas: usize,
        resume: impl FnOnce(&Self),
    ) -> usize {
        self.set_down_after(STEADY);
        // A longer ping period keeps a replica's `INFO` valid for longer (see [`HASTE`]): otherwise
        // a replica that is silent for a moment could not be promoted.
        self.set_periods(&["ping-period", "1000"]);
        self.servers[old].kill();
        resume(self);
        eventually("the replicas are up again", BOUND, || {
            self.sentinels
                .iter()
                .all(|sentinel| self.replicas_up(sentinel) == replicas)
        });
        // A replica whose link to the master has been down for ten times this long is not promoted.
        self.set_down_after(DOWN_AFTER * 4);
        self.await_other_than(old)
    }

    /// Sets how often the sentinels ping, publish and so on, in milliseconds.
    fn set_periods(&self, periods: &[&str]) {
        for sentinel in &self.sentinels {
            // Redis 6 does not know the command: its sentinels keep their defaults, and what a test
            // waits for takes a few seconds.
            let _older = sentinel
                .probe()
                .try_command(&[&["SENTINEL", "DEBUG"], periods].concat());
        }
    }

    /// Makes the sentinels read a server's `INFO` only every ten seconds, as by default.
    pub fn look_seldom(&self) {
        self.set_periods(&["info-period", "10000"]);
    }

    fn set_down_after(&self, time: Duration) {
        let millis = time.as_millis().to_string();
        for sentinel in &self.sentinels {
            let change = [
                "SENTINEL",
                "SET",
                &self.name,
                "down-after-milliseconds",
                &millis,
            ];
            sentinel.probe().command(&change);
        }
    }

    /// Makes the sentinels choose this replica, if it is up, when the master is to be replaced.
    pub fn prefer(&self, place: usize) {
        let (server, priority) = (&self.servers[place], "1");
        server
            .probe()
            .command(&["CONFIG", "SET", "replica-priority", priority]);
        let port = server.port().to_string();
        eventually("all sentinels know the priority", BOUND, || {
            self.sentinels.iter().all(|sentinel| {
                let replicas = sentinel
                    .probe()
                    .command(&["SENTINEL", "REPLICAS", &self.name]);
                let is_known = |it: &BTreeMap<String, String>| {
                    it["port"] == port && it["slave-priority"] == priority
                };
                each(replicas).iter().any(is_known)
            })
        });
    }

    /// Makes these sentinels announce themselves on other ports, as behind a network of their own;
    /// returns when all sentinels know each other by these ports.
    pub fn announce_at(&self, places: &[(usize, u16)]) {
        let mut ports = self.sentinel_ports();
        for (place, port) in places {
            ports[*place] = *port;
            let mut probe = self.sentinels[*place].probe();
            for (name, value) in [
                ("announce-ip", "127.0.0.1"),
                ("announce-port", &port.to_string()),
            ] {
                let change = ["SENTINEL", "CONFIG", "SET", name, value];
                assert_eq!(probe.command(&change).text(), "OK");
            }
        }
        eventually("they know each other by the announced ports", BOUND, || {
            self.sentinels.iter().enumerate().all(|(at, sentinel)| {
                let others = sentinel
                    .probe()
                    .command(&["SENTINEL", "SENTINELS", &self.name]);
                let known: Vec<_> = each(others).iter().map(|it| it["port"].clone()).collect();
                (0..ports.len())
                    .all(|other| other == at || known.contains(&ports[other].to_string()))
            })
        });
        self.await_quiet(self.servers.len() - 1);
    }

    /// Keeps this sentinel from receiving what the other sentinels publish, and from changing any
    /// server's role. It continues to watch the master that it knows.
    pub fn isolate(&self, place: usize) {
        let id = self.sentinel_id(place);
        let name = format!("sentinel-{}", &id[..8]);
        for server in &self.servers {
            let rule = "ACL SETUSER deaf on >deaf ~* &* +@all -subscribe -slaveof -replicaof";
            server.probe().command(&rule.split(' ').collect::<Vec<_>>());
        }
        let mut probe = self.sentinels[place].probe();
        for (option, value) in [("auth-user", "deaf"), ("auth-pass", "deaf")] {
            let change = ["SENTINEL", "SET", &self.name, option, value];
            assert_eq!(probe.command(&change).text(), "OK");
        }
        let is_its = |client: &&String| client.contains(&format!("name={name}"));
        eventually("it is cut off", BOUND, || {
            self.servers.iter().all(|server| {
                let mut probe = server.probe();
                let clients = probe.clients();
                let its: Vec<_> = clients.iter().filter(is_its).collect();
                for client in its.iter().filter(|client| !client.contains("user=deaf")) {
                    let client = client.split(' ').find_map(|it| it.strip_prefix("id="));
                    probe.command(&["CLIENT", "KILL", "ID", client.expect("it has one")]);
                }
                !its.is_empty() && its.iter().all(|client| client.contains("user=deaf"))
            })
        });
    }

    /// Makes this sentinel promote another server while the old master is well; returns when this
    /// sentinel names the new master.
    pub fn fail_over_by(&self, place: usize) {
        self.set_down_after(STEADY);
        let old = self.named_by(&self.sentinels[place]);
        eventually("a failover comes about", BOUND, || {
            let mut probe = self.sentinels[place].probe();
            let _under_way = probe.try_command(&["SENTINEL", "FAILOVER", &self.name]);
            self.named_by(&self.sentinels[place]) != old
        });
    }

    /// Waits until these sentinels name the same master, which is not `old`, and that server says
    /// that it is a master. Returns its number.
    pub fn await_named_by(&self, places: &[usize], old: usize) -> usize {
        eventually("these sentinels name another master", BOUND, || {
            let named = places.iter().map(|it| self.named_by(&self.sentinels[*it]));
            let named: Option<Vec<_>> = named.collect();
            let first = *named.as_ref()?.first()?;
            let is_one = named?.iter().all(|port| *port == first);
            let new = self.place_of(first);
            (is_one && new != old && is_master(&self.servers[new])).then_some(new)
        })
    }

    /// Makes the sentinels promote another server while the old master is well. Returns the old
    /// master's number when the first sentinel names the new one.
    pub fn fail_over(&self) -> usize {
        // Otherwise a new master that is silent for a while on a busy machine would be replaced by
        // the old one.
        self.set_down_after(STEADY);
        let old = self.master();
        let mut probe = self.sentinels[0].probe();
        eventually("a failover comes about", BOUND, || {
            let named = self.named_by(&self.sentinels[0]);
            if named.is_some_and(|port| port != self.servers[old].port()) {
                return true;
            }
            let master = about(probe.command(&["SENTINEL", "MASTER", &self.name]));
            let is_under_way = master
                .get("flags")
                .is_some_and(|it| it.contains("failover"));
            if !is_under_way {
                // Requested again and again: on a busy machine a sentinel may see no replica that
                // is up for a moment, and give up. Refused until the last failover is over for all
                // sentinels.
                let _refused = probe.try_command(&["SENTINEL", "FAILOVER", &self.name]);
            }
            false
        });
        old
    }
}

impl Hosts {
    fn server(self, place: usize) -> String {
        match self {
            Self::Same => "127.0.0.1".to_owned(),
            Self::Apart => addresses::loopback(nth(FIRST_SERVER, place)),
        }
    }

    fn start_server(
        self,
        place: usize,
        arguments: &[&str],
        clock: Option<&TimeOfDay>,
    ) -> RedisServer {
        let apart = match self {
            Self::Same => Vec::new(),
            Self::Apart => addresses::arguments(nth(FIRST_SERVER, place), "--replica-announce-ip"),
        };
        let apart: Vec<_> = apart.iter().map(String::as_str).collect();
        RedisServer::start_with_clock(&[arguments, &apart].concat(), clock)
    }

    fn start_sentinel(self, place: usize, settings: &str) -> RedisServer {
        match self {
            Self::Same => RedisServer::start_sentinel(settings),
            Self::Apart => {
                let address = addresses::loopback(nth(FIRST_SENTINEL, place));
                let settings = format!("sentinel announce-ip {address}\n{settings}");
                let bind = ["--bind", "127.0.0.1", &address].map(str::to_owned);
                RedisServer::start_sentinel_with(&settings, bind.into())
            }
        }
    }
}

/// Returns the number of the loopback address that is so far behind the first one.
fn nth(first: u8, place: usize) -> u8 {
    first + u8::try_from(place).expect("a group has few members")
}

/// Returns the configuration of one of `sentinels` sentinels, for a master with `replicas`
/// replicas.
fn settings(name: &str, host: &str, port: u16, sentinels: usize, replicas: usize) -> String {
    // More than half of the sentinels must agree that the master is down, and on which of them
    // replaces it.
    let quorum = sentinels / 2 + 1;
    format!(
        "sentinel monitor {name} {host} {port} {quorum}\n\
         sentinel down-after-milliseconds {name} {}\n\
         sentinel failover-timeout {name} 1000\n\
         sentinel parallel-syncs {name} {replicas}\n",
        STEADY.as_millis(),
    )
}

/// Keeps this server a master: a sentinel cannot make it a replica, so its connections stay open
/// after a failover.
pub fn keep_a_master(server: &RedisServer) {
    // The sentinels log in as this user.
    server
        .probe()
        .command(&["ACL", "SETUSER", "default", "-slaveof", "-replicaof"]);
}

/// Makes a name that no other master has, in any test that runs at the same time. Sentinels
/// exchange what they know of a name through the servers that they watch, and keep contacting the
/// ports of servers that are gone, which another test may use by now.
pub fn fresh_name() -> String {
    format!("master-{:016x}", fastrand::u64(..))
}

/// Returns `redis+sentinel://..` with the sentinels on these ports.
pub fn url(name: &str, ports: &[u16]) -> String {
    url_with(
        name,
        ports.iter().map(|port| ("127.0.0.1".to_owned(), *port)),
    )
}

fn url_with(name: &str, places: impl Iterator<Item = (String, u16)>) -> String {
    let hosts: Vec<_> = places
        .map(|(host, port)| format!("{host}:{port}"))
        .collect();
    format!("redis+sentinel://{LOGIN}@{}/{name}", hosts.join(","))
}

/// Returns whether the server says that it is a master.
pub fn is_master(server: &RedisServer) -> bool {
    let Ok(mut probe) = Probe::try_connect(server.port()) else {
        return false;
    };
    let Ok(Value::List(role)) = probe.try_command(&["ROLE"]) else {
        return false;
    };
    role.first() == Some(&Value::Text("master".to_owned()))
}

/// Returns the fields of one instance, as a sentinel lists them.
pub fn about(value: Value) -> BTreeMap<String, String> {
    let words = value.texts();
    words
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

fn each(value: Value) -> Vec<BTreeMap<String, String>> {
    match value {
        Value::List(instances) => instances.into_iter().map(about).collect(),
        other => panic!("the sentinel answered {other:?}"),
    }
}

/// Waits until this client's attempts at `lock` write this key on this server. On a busy machine, a
/// client learns late of a failover.
#[track_caller]
pub fn await_move(lock: &Mutex, key: &str, to: &RedisServer) {
    eventually("locks are taken on the new master", BOUND, || {
        let Ok(Some(guard)) = lock.try_lock() else {
            return false;
        };
        let is_there = to.probe().exists(key);
        guard.unlock().is_ok() && is_there
    });
}
