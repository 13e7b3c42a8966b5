//! Which nodes are asked for the slot map, whose answer counts, and how soon. The test sets the
//! answers of the nodes.

use crate::fake_node::{FakeNode, Member, Word, client_of, master, replica, thirds};
use crate::scene::{LONG, take, turn};
use distlock::{Client, LockOptions};
use distlock_tests::distance::Distance;
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::proxy::Proxy;
use distlock_tests::time::{Stopwatch, always, eventually, let_pass, within};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

/// Names whose slots are in the first, the second and the last third of all slots.
const NAMES: [&str; 3] = ["lock:{b}", "lock:{c}", "lock:{a}"];

const SETTINGS: &str = "watchdog=30s&command_timeout=3s&connect_timeout=2s";

fn server() -> RedisServer {
    RedisServer::start_cluster_node(&[])
}

fn nodes<const N: usize>(server: &RedisServer) -> [FakeNode; N] {
    std::array::from_fn(|_| FakeNode::before(server))
}

fn all_turn(client: &Client) {
    for name in NAMES {
        turn(client, name);
    }
}

/// Redis 7.2.4 and 7.4.1 answer so after a failover, while the replaced master is away: `CLUSTER
/// SHARDS` lists the slots of its successor nowhere.
#[test]
fn slots_missing_in_shards_are_found_in_slots() {
    let server = server();
    let [old, new, second, third] = nodes(&server);
    let before = thirds(
        [
            master("a", old.port()),
            master("b", second.port()),
            master("c", third.port()),
        ],
        vec![replica("d", new.port())],
    );
    for (node, id) in [(&old, "a"), (&new, "d"), (&second, "b"), (&third, "c")] {
        node.say(Word::new(id, 4, &before));
    }
    let ports = [second.port(), third.port()];
    let client = client_of(&ports, SETTINGS);
    let held = NAMES.map(|name| take(&client, name));

    let gone = free_port();
    let away = Member {
        health: "fail",
        ..master("a", gone)
    };
    let mut after = before.clone();
    after[0].1 = vec![away.clone(), master("d", new.port())];
    for (node, id) in [(&new, "d"), (&second, "b"), (&third, "c")] {
        let mut word = Word::new(id, 5, &after);
        word.shards[0].0.clear();
        node.say(word);
    }
    let _dead = old.hang();
    for guard in &held {
        eventually("the holder is known", LONG, || guard.verify().is_ok());
    }
    held.into_iter().for_each(|guard| guard.unlock().unwrap());
    all_turn(&client);
    all_turn(&client_of(&ports, SETTINGS));
}

/// An isolated replica begins one election after another, each with a larger epoch, and never
/// learns that there is a new master. Its epoch must not make its old map win.
#[test]
fn epoch_of_an_isolated_replica_outvotes_no_master() {
    let server = server();
    let [new, second, third, isolated] = nodes(&server);
    let gone = free_port();
    let others = |first| [first, master("b", second.port()), master("c", third.port())];
    let after = thirds(others(master("d", new.port())), vec![]);
    let before = thirds(
        others(master("a", gone)),
        vec![replica("e", isolated.port())],
    );
    for (node, id) in [(&new, "d"), (&second, "b"), (&third, "c")] {
        node.say(Word::new(id, 7, &after));
    }
    // The replica may not have noticed yet that it is isolated, and then reports the cluster as up.
    for is_up in [false, true] {
        isolated.say(Word {
            is_up,
            ..Word::new("e", 50, &before)
        });
        let (alone, two) = (isolated.port(), [second.port(), third.port()]);
        for ports in [&[alone, two[0], two[1]][..], &[alone, two[0]], &[alone]] {
            let client = client_of(ports, SETTINGS);
            for name in NAMES {
                eventually("it is granted", Duration::from_secs(20), || {
                    client
                        .mutex(name)
                        .unwrap()
                        .try_lock()
                        .is_ok_and(|guard| guard.is_some())
                });
            }
        }
    }
}

/// The isolated replica answers at once, the other nodes after 250 ms. Its old map must not win
/// because it arrives first.
#[test]
fn near_isolated_replica_outvotes_no_distant_master() {
    let server = server();
    let [new, second, third, isolated] = nodes(&server);
    let gone = free_port();
    let far =
        [&new, &second, &third].map(|it| Distance::new(it.port(), Duration::from_millis(250)));
    let [to_new, to_second, to_third] = far.each_ref().map(Distance::port);
    let others = |first| [first, master("b", to_second), master("c", to_third)];
    let after = thirds(others(master("d", to_new)), vec![]);
    let before = thirds(
        others(master("a", gone)),
        vec![replica("e", isolated.port())],
    );
    for (node, id) in [(&new, "d"), (&second, "b"), (&third, "c")] {
        node.say(Word::new(id, 7, &after));
    }
    isolated.say(Word {
        is_up: false,
        ..Word::new("e", 50, &before)
    });
    let client = client_of(&[isolated.port(), to_second, to_third], SETTINGS);
    for name in NAMES {
        eventually("it is granted", Duration::from_secs(30), || {
            client
                .mutex(name)
                .unwrap()
                .try_lock()
                .is_ok_and(|guard| guard.is_some())
        });
    }
}

/// A request for the slot map to a distant node is not given up: its answer counts when it arrives,
/// although a near replica has answered long before, with an old map.
#[test]
fn distant_master_is_heard_while_another_is_cut_off() {
    let server = server();
    let [new, near, distant] = nodes(&server);
    let gone = free_port();
    let far = Distance::new(distant.port(), Duration::from_millis(250));
    let others = |first| [first, master("b", near.port()), master("c", far.port())];
    let before = thirds(others(master("a", gone)), vec![replica("d", new.port())]);
    let after = thirds(others(master("d", new.port())), vec![]);
    near.say(Word::new("b", 4, &before));
    distant.say(Word::new("c", 5, &after));
    // The successor does not know yet that it was elected.
    new.say(Word::new("d", 4, &before));
    let client = client_of(&[near.port()], SETTINGS);
    turn(&client, NAMES[1]);
    let _cut_off = near.hang();
    let watch = Stopwatch::start();
    eventually("the successor is found", Duration::from_secs(20), || {
        client
            .mutex(NAMES[0])
            .unwrap()
            .try_lock()
            .is_ok_and(|guard| guard.is_some())
    });
    println!(
        "found after {:?}, {} questions",
        watch.elapsed(),
        distant.questions()
    );
}

/// The nodes have moved: their old addresses are silent, and only the address in the URL leads to
/// the same nodes at new addresses.
#[test]
fn moved_nodes_are_found_by_the_url_while_all_known_ones_hang() {
    const LEASE: Duration = Duration::from_secs(15);
    for replicas in [0, 27] {
        let server = server();
        let (old, new): ([FakeNode; 3], [FakeNode; 3]) = (nodes(&server), nodes(&server));
        // Replicas that accept connections and never answer.
        let silent: Vec<_> = (0..replicas)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
            .collect();
        let silent = silent
            .iter()
            .map(|it| replica("r", it.local_addr().unwrap().port()));
        let silent: Vec<_> = silent.collect();
        let ids = ["a", "b", "c"];
        for (nodes, replicas) in [(&old, silent), (&new, vec![])] {
            let masters = [0, 1, 2].map(|at| master(ids[at], nodes[at].port()));
            let shards = thirds(masters, replicas);
            nodes
                .iter()
                .zip(ids)
                .for_each(|(node, id)| node.say(Word::new(id, 4, &shards)));
        }
        let endpoint = Proxy::plain(old[0].port());
        let settings = "watchdog=15s&command_timeout=500ms&connect_timeout=2s";
        let client = client_of(&[endpoint.port()], settings);
        let held = NAMES.map(|name| take(&client, name));
        let _hang = old.each_ref().map(FakeNode::hang);
        // Open connections stay open and hang; new ones lead to the new address.
        endpoint.lead_to(new[1].port());
        let watch = Stopwatch::start();
        within(LEASE / 3, || {
            for guard in &held {
                eventually("it is found", LEASE, || guard.verify().is_ok());
            }
        });
        println!(
            "{replicas} silent replicas: found after {:?}",
            watch.elapsed()
        );
        assert!(held.iter().all(|guard| guard.is_valid()));
        held.into_iter().for_each(|guard| guard.unlock().unwrap());
    }
}

/// A client uses a replaced cluster one lease after the first query that no known node answers,
/// however long it was idle before. Until the old cluster went, other clients may have renewed
/// their locks.
#[test]
fn client_follows_a_replaced_cluster_a_lease_later() {
    const LEASE: Duration = Duration::from_secs(3);
    for idle in [Duration::ZERO, LEASE * 2] {
        let server = server();
        let nodes: [FakeNode; 3] = nodes(&server);
        let say = |ids: [&'static str; 3]| {
            let masters = [0, 1, 2].map(|at| master(ids[at], nodes[at].port()));
            let shards = thirds(masters, vec![]);
            nodes
                .iter()
                .zip(ids)
                .for_each(|(node, id)| node.say(Word::new(id, 4, &shards)));
        };
        say(["a", "b", "c"]);
        let settings = "watchdog=3s&command_timeout=1s&connect_timeout=1s";
        let client = client_of(&[nodes[0].port(), nodes[1].port()], settings);
        // The client's own lease is over before that.
        let lock = client.mutex(NAMES[0]).unwrap();
        let guard = lock.try_lock_with(&LockOptions::new().lease(Duration::from_secs(2)));
        drop(guard.unwrap().expect("it is free"));
        let_pass(idle);
        let watch = Stopwatch::start();
        say(["x", "y", "z"]);
        eventually("it is followed", LONG, || {
            client
                .mutex(NAMES[0])
                .unwrap()
                .try_lock()
                .is_ok_and(|guard| guard.is_some())
        });
        assert!(watch.elapsed() >= LEASE, "{idle:?}: {:?}", watch.elapsed());
    }
}

/// A node of another cluster at one of three addresses is not used while the other two addresses
/// are silent. They may only be cut off from this client, and other clients may hold locks there.
#[test]
fn foreign_node_is_not_followed_while_most_addresses_are_silent() {
    const LEASE: Duration = Duration::from_secs(1);
    let server = server();
    let nodes: [FakeNode; 3] = nodes(&server);
    let ports = [0, 1, 2].map(|at| nodes[at].port());
    let ids = ["a", "b", "c"];
    let shards = thirds([0, 1, 2].map(|at| master(ids[at], ports[at])), vec![]);
    nodes
        .iter()
        .zip(ids)
        .for_each(|(node, id)| node.say(Word::new(id, 4, &shards)));
    let client = client_of(
        &ports,
        "watchdog=1s&command_timeout=500ms&connect_timeout=500ms",
    );
    all_turn(&client);
    let _silent = [nodes[0].hang(), nodes[1].hang()];
    let whole = vec![(vec![[0, 16_383]], vec![master("x", ports[2])])];
    nodes[2].say(Word::new("x", 9, &whole));
    always("no lock is granted", LEASE * 6, || {
        NAMES
            .iter()
            .all(|name| client.mutex(*name).unwrap().try_lock().is_err())
    });
    // A client that starts now knows nothing of the silent nodes, so it uses the one that answers.
    turn(&client_of(&ports, SETTINGS), NAMES[0]);
}
