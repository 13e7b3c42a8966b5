//! An isolated master that does not know of its successor yet, and accepts writes until then.

use crate::scene::{LONG, backend, client_with, take, turn};
use distlock::backend::{LeaseTime, OwnerId};
use distlock::config::Replication;
use distlock::{LockName, LossCause};
use distlock_tests::cluster::{Cluster, map_requests};
use distlock_tests::guards::await_renewals;
use distlock_tests::probe::{Probe, Value};
use distlock_tests::time::{eventually, ms};
use distlock_tests::version::skipped_before_7;
use distlock_tests::wall::Wall;
use lock_core::backend::Attempt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The source address of the isolated node, by which the walls know its connections.
const MINORITY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// What this server must support: otherwise a wall could not tell which node a connection comes
/// from.
const SOURCES: &str = "isolated nodes, by the address from which a node dials";

#[track_caller]
fn ok(probe: &mut Probe, words: &[&str]) {
    assert_eq!(
        probe.command(words),
        Value::Text("OK".to_owned()),
        "{words:?}"
    );
}

/// A cluster that can be divided: one node, perhaps with clients, on one side, and all other nodes
/// on the other side.
struct SplitVote {
    cluster: Cluster,
    minority: usize,
    /// The walls between the nodes.
    buses: Vec<Wall>,
    /// The walls between the client of each side and the nodes of the other side.
    clients: Vec<Wall>,
    /// A connection to the isolated node, opened before the division.
    probe: Probe,
}

impl SplitVote {
    /// Starts a cluster that is not divided yet, in which the nodes know each other by the walls.
    fn start(minority: usize) -> Self {
        let cluster = Cluster::start_each(|number| {
            let mut arguments = Cluster::replacing().to_vec();
            arguments.extend(["--cluster-announce-ip", "127.0.0.1"]);
            if number == minority {
                arguments.extend(["--bind-source-addr", "127.0.0.2"]);
            }
            arguments.into_iter().map(str::to_owned).collect()
        });
        let nodes = || (0..cluster.len()).map(|node| cluster.node(node));
        let buses: Vec<_> = nodes().map(|node| Wall::before(node.bus_port())).collect();
        for (node, wall) in nodes().zip(&buses) {
            let port = wall.port().to_string();
            ok(
                &mut node.probe(),
                &["CONFIG", "SET", "cluster-announce-bus-port", &port],
            );
        }
        eventually("they know each other by the walls", LONG, || {
            nodes().all(|node| {
                let known = node.probe().command(&["CLUSTER", "NODES"]).text();
                buses
                    .iter()
                    .all(|wall| known.contains(&format!("@{}", wall.port())))
            })
        });
        cluster.wait_until_agreed(cluster.len());
        let clients = nodes().map(|node| Wall::before(node.port())).collect();
        Self {
            probe: cluster.node(minority).probe(),
            buses,
            clients,
            cluster,
            minority,
        }
    }

    /// Returns the address map of a client that reaches these nodes through walls.
    fn map(&self, nodes: impl Iterator<Item = usize>) -> String {
        let pair = |node: usize| {
            let (port, wall) = (self.cluster.node(node).port(), self.clients[node].port());
            format!("127.0.0.1:{port}=127.0.0.1:{wall}")
        };
        nodes.map(pair).collect::<Vec<_>>().join(",")
    }

    /// Cuts all traffic between the nodes of the two sides, also to replicas.
    fn divide(&mut self) {
        for (node, wall) in self.buses.iter().enumerate() {
            wall.keep_out((node != self.minority).then_some(MINORITY));
        }
        // Replicas connect to the client port, which has no wall. The password keeps them from
        // connecting again.
        ok(
            &mut self.probe,
            &["CONFIG", "SET", "requirepass", "stay-out"],
        );
        self.probe.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Cuts all traffic between the clients of each side and the nodes of the other side.
    fn divide_clients(&self) {
        self.clients.iter().for_each(|wall| wall.keep_out(None));
    }

    /// Divides the cluster without letting any node be marked as failed, and makes `new` the master
    /// of this name for all other nodes.
    fn divide_unnoticed(&mut self, new: usize, name: &str) {
        let slot = self.cluster.slot(name);
        for node in 0..self.cluster.len() {
            let mut probe = self.cluster.node(node).probe();
            ok(
                &mut probe,
                &["CONFIG", "SET", "cluster-node-timeout", "60000"],
            );
        }
        self.divide();
        let cluster = &self.cluster;
        ok(
            &mut cluster.node(new).probe(),
            &["CLUSTER", "FAILOVER", "TAKEOVER"],
        );
        cluster.wait_for_owner_but(slot, new, Some(self.minority));
    }

    fn unite(&mut self) {
        ok(&mut self.probe, &["CONFIG", "SET", "requirepass", ""]);
        ok(&mut self.probe, &["CONFIG", "SET", "bind-source-addr", ""]);
        self.buses.iter().chain(&self.clients).for_each(Wall::open);
    }
}

/// The other side elects a successor, and a client there takes the lock. On this side the old
/// master, which has not noticed, grants it, too. The fencing tokens tell the two grants apart, a
/// replica policy prevents a grant by the old master, and the lost lock is reported.
#[test]
fn isolated_master_grants_nothing_under_a_replica_policy() {
    if skipped_before_7(SOURCES) {
        return;
    }
    let mut divided = SplitVote::start(0);
    let cluster = &divided.cluster;
    let (old, new) = (0, cluster.replica_of(0));
    let name = cluster.name_on(old, "divided");
    let slot = cluster.slot(&name);
    let url = cluster.url_of(&[0, 1]);
    let with = |map: String, more: &str| {
        let settings = format!("watchdog=6s&command_timeout=1s&connect_timeout=500ms{more}");
        client_with(&url, &format!("{settings}&address_map={map}"))
    };
    let here = with(divided.map(1..6), "");
    let careful = with(divided.map(1..6), "&replicas=all&replication_timeout=300ms");
    let there = with(divided.map(0..1), "");
    for client in [&here, &careful, &there] {
        turn(client, &name);
    }
    // Makes the old master accept writes although it receives nothing from the other nodes.
    ok(
        &mut divided.probe,
        &["CONFIG", "SET", "cluster-node-timeout", "60000"],
    );
    divided.divide();
    divided.divide_clients();
    let cluster = &divided.cluster;
    eventually("the others have a successor", LONG, || {
        cluster.find_owner(slot) == Some(new)
    });
    let first = take(&here, &name);
    let second = take(&there, &name);
    println!(
        "two hold it: {:?}, {:?}",
        first.fencing_token(),
        second.fencing_token()
    );
    assert!(
        second.fencing_token() > first.fencing_token(),
        "known by its token"
    );
    let free = format!("careful:{{{name}}}");
    let error = careful.mutex(&free).unwrap().try_lock().unwrap_err();
    assert!(error.is_insufficient_replicas(), "{error:?}");
    await_renewals(&first);
    await_renewals(&second);
    assert!(
        first.is_valid() && second.is_valid(),
        "each side renews its own"
    );
    assert!(
        divided.buses.iter().map(Wall::refused).sum::<u64>() > 0,
        "they tried"
    );

    // As soon as the old master notices that it is isolated, it refuses all requests.
    ok(
        &mut divided.probe,
        &["CONFIG", "SET", "cluster-node-timeout", "1000"],
    );
    let lock = here.mutex(&free).unwrap();
    eventually("it is down", LONG, || {
        lock.try_lock().is_err_and(|error| error.is_unavailable())
    });
    let loss = first.losses().recv_timeout(LONG).unwrap();
    assert_eq!(
        loss.cause(),
        LossCause::Expired,
        "by our own clock: no node could be asked"
    );

    divided.unite();
    divided.cluster.wait_for_owner(slot, new);
    divided.cluster.await_listing(new);
    assert!(second.verify().unwrap() > Duration::ZERO);
    assert!(first.unlock().unwrap_err().is_lost());
    second.unlock().unwrap();
    turn(&here, &name);
    turn(&careful, &free);
}

/// The successor does not know what the isolated master has granted, so two clients hold the lock.
/// The later one has the larger token, and the earlier one is told of the loss at its next renewal.
/// No client returns to the old master.
#[test]
fn lock_granted_by_an_isolated_master_is_lost_and_reported() {
    if skipped_before_7(SOURCES) {
        return;
    }
    let mut divided = SplitVote::start(0);
    let (old, new) = (0, divided.cluster.replica_of(0));
    let name = divided.cluster.name_on(old, "split");
    // With a lease of 6 s the lock is renewed before the slot map is refreshed.
    let settings = "watchdog=6s&command_timeout=1s";
    let one = client_with(&divided.cluster.url(), settings);
    // Gives the client its slot map and its connections.
    turn(&one, &name);
    divided.divide_unnoticed(new, &name);
    let before = divided.probe.command_calls("hset");
    let first = take(&one, &name);
    assert_eq!(
        divided.probe.command_calls("hset"),
        before + 1,
        "by the old master"
    );
    // This client gets its slot map from a node that knows the successor.
    let other = client_with(&divided.cluster.url_of(&[1]), settings);
    let second = take(&other, &name);
    assert_eq!(
        divided.probe.command_calls("hset"),
        before + 1,
        "by the successor"
    );
    assert!(
        second.fencing_token() > first.fencing_token(),
        "who came later is known by its token"
    );
    assert!(first.is_valid() && second.is_valid(), "two hold it");

    divided.unite();
    let cluster = &divided.cluster;
    let loss = first.losses().recv_timeout(LONG).unwrap();
    assert_eq!(loss.cause(), LossCause::Gone, "by the successor's word");
    assert_eq!(cluster.owner(cluster.slot(&name)), new);
    assert!(first.unlock().unwrap_err().is_lost());
    // The old master, by now a replica, would redirect every client.
    let mut asked = || divided.probe.info_field("errorstats", "errorstat_MOVED");
    let before = asked();
    assert!(second.verify().unwrap() > Duration::ZERO);
    second.unlock().unwrap();
    turn(&one, &name);
    assert_eq!(asked(), before, "no client asks the old one");
}

/// A node that does not know of an election reports an old slot map. A client with a newer map does
/// not return to it, even if no other node can be asked.
#[test]
fn slot_map_of_an_isolated_node_does_not_replace_a_newer_one() {
    if skipped_before_7(SOURCES) {
        return;
    }
    let behind = 1;
    let mut divided = SplitVote::start(behind);
    let (old, new, short) = (0, divided.cluster.replica_of(0), 2);
    let [name, unasked, tag] = [(old, "asked"), (old, "unasked"), (short, "short")]
        .map(|(node, before)| divided.cluster.name_on(node, before));
    let url = divided.cluster.url_of(&[old, short]);
    let others = (0..divided.cluster.len()).filter(|node| *node != behind);
    let map = divided.map(others);
    let (backend, context) = backend(&format!("{url}?connect_timeout=500ms&address_map={map}"));
    let lease = LeaseTime::new(LONG).unwrap();
    let acquire = |name: &str, replication, time| {
        let name = LockName::new(name).unwrap();
        let attempt = Attempt::new(&name, OwnerId::new(context.client, 1), lease);
        backend.acquire(
            &attempt.replication(replication),
            context.clock.now() + time,
        )
    };
    // An attempt that no replica confirms makes the client request the slot map.
    let number = AtomicU64::new(0);
    let has_asked_for = |time| {
        let name = format!("{{{tag}}}:{}", number.fetch_add(1, Ordering::Relaxed));
        acquire(&name, Replication::replicas(1).timeout(ms(1)), time).map(drop)
    };
    let lane = || backend.renewal_node(&LockName::new(&unasked).unwrap());
    acquire(&name, Replication::off(), LONG).unwrap();
    let first = lane();

    divided.divide_unnoticed(new, &name);
    let cluster = &divided.cluster;
    cluster.node(cluster.replica_of(short)).pause();
    eventually("the map has learnt it", LONG, || {
        has_asked_for(LONG).unwrap();
        lane() != first
    });
    let known = lane();
    let mut asked = || map_requests(&mut divided.probe);
    let before = asked();
    eventually("the one that is behind is asked", LONG, || {
        has_asked_for(LONG).unwrap();
        assert_eq!(lane(), known, "its word is not taken");
        asked() >= before + 5
    });
    divided.divide_clients();
    let mut asked = || map_requests(&mut divided.probe);
    let before = asked();
    eventually("it is asked when no other node can be", LONG, || {
        has_asked_for(ms(300)).unwrap_err();
        assert_eq!(lane(), known, "nor then");
        asked() >= before + 3
    });
}
