//! Nodes that left the cluster, and a client that is gone, leave no thread and no connection
//! behind.

use crate::scene::{LONG, client_with, take, turn};
use distlock::Client;
use distlock_tests::cluster::Cluster;
use distlock_tests::own_process::{alone, own_threads};
use distlock_tests::time::{eventually, timed};
use std::thread;
use std::time::Duration;

const SETTINGS: &str = "watchdog=3s&command_timeout=1s&connect_timeout=500ms";

fn connections(cluster: &Cluster, node: usize) -> usize {
    let clients = cluster.node(node).probe().clients();
    clients
        .iter()
        .filter(|client| client.contains("name=distlock"))
        .count()
}

/// Returns the number of file descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("this is Linux")
        .count()
}

/// Uses everything that opens a connection to a node or starts a thread: attempts, renewals, an
/// asynchronous release, and a subscription.
fn use_everything(cluster: &Cluster, name: &str, [one, other]: [&Client; 2]) {
    let held = take(one, name);
    thread::scope(|scope| {
        let waits = scope.spawn(|| turn(other, name));
        let mut probe = cluster.probe(name);
        eventually("it waits", LONG, || probe.listeners() > 0);
        let before = probe.expires_at(name);
        eventually("it is renewed", LONG, || probe.expires_at(name) > before);
        drop(held);
        waits.join().unwrap();
    });
}

#[test]
fn removed_node_leaves_no_thread_and_no_connection() {
    alone(
        "departure::removed_node_leaves_no_thread_and_no_connection",
        || {
            nothing_is_left_of_a_node(Lanes::AreLeft);
        },
    );
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn removed_node_leaves_no_renewal_worker() {
    alone("departure::removed_node_leaves_no_renewal_worker", || {
        nothing_is_left_of_a_node(Lanes::End);
    });
}

/// Whether the test also waits for the end of the idle renewal workers.
#[derive(PartialEq, Eq)]
enum Lanes {
    AreLeft,
    End,
}

fn nothing_is_left_of_a_node(lanes: Lanes) {
    let mut cluster = Cluster::steady();
    let [one, other] = [(); 2].map(|()| client_with(&cluster.url(), SETTINGS));
    let name = cluster.name_on(0, "guest");
    let slot = cluster.slot(&name);
    let mut visit = || {
        let new = cluster.add();
        cluster.move_slot(slot, 0, new);
        cluster.wait_for_owner(slot, new);
        use_everything(&cluster, &name, [&one, &other]);
        assert!(connections(&cluster, new) > 0);
        cluster.move_slot(slot, new, 0);
        // The old node still exists here, because it may be asked where the slot has gone.
        turn(&one, &name);
        turn(&other, &name);
        eventually("no connection to it is left", LONG, || {
            connections(&cluster, new) == 0
        });
        cluster.remove(new);
        // Workers for locks that were held until a moment ago end by themselves, so they do not
        // count.
        let ends = |name: &String| {
            ["renew", "confi", "clean", "spare", "timer", "coll"]
                .iter()
                .any(|it| name.contains(it))
        };
        let threads = own_threads().into_iter().filter(|name| !ends(name)).count();
        (threads, descriptors())
    };
    // The first request for the slot map to each remaining node opens a connection. So the counts
    // grow at first, but must not grow with each visit.
    let mut counts = Vec::new();
    while counts.len() < 15 {
        counts.push(visit());
        if let [.., one, two] = counts[..]
            && one == two
        {
            break;
        }
    }
    println!("threads and descriptors: {counts:?}");
    assert!(
        counts.len() < 15,
        "each visit leaves something behind: {counts:?}"
    );
    if lanes == Lanes::End {
        // An idle renewal worker ends after half a minute.
        eventually("the lanes have ended", LONG, || {
            let ends = |name: &String| ["renew", "clean"].iter().any(|it| name.contains(it));
            !own_threads().iter().any(ends)
        });
    }
}

/// As soon as a hanging node has a successor, no request waits for the node any longer, and the
/// client closes its connections to the node.
#[test]
fn hanging_node_is_left_when_it_is_replaced() {
    alone(
        "departure::hanging_node_is_left_when_it_is_replaced",
        nothing_waits_for_one_that_hangs,
    );
}

fn nothing_waits_for_one_that_hangs() {
    let cluster = Cluster::start();
    let (frozen, replica) = (0, cluster.replica_of(0));
    let settings = "watchdog=60s&command_timeout=60s&connect_timeout=500ms";
    let client = client_with(&cluster.url(), settings);
    let (mine, others) = (
        cluster.name_on(frozen, "mine"),
        cluster.name_on(1, "others"),
    );
    let slot = cluster.slot(&mine);
    turn(&client, &mine);
    cluster.node(frozen).pause();
    thread::scope(|scope| {
        // By its own time-outs this request could wait much longer than the 15 s below.
        let asks = scope.spawn(|| turn(&client, &mine));
        cluster.wait_for_owner(slot, replica);
        eventually(
            "it has the lock of the successor",
            Duration::from_secs(15),
            || {
                turn(&client, &others);
                asks.is_finished()
            },
        );
        assert!(asks.join().unwrap().is_some());
    });
    cluster.node(frozen).resume();
    cluster.wait_until_agreed(6);
    // The connection for requests for the slot map may remain, as to any other replica.
    eventually("no other client is connected to it", LONG, || {
        let clients = cluster.node(frozen).probe().clients();
        let ours = clients
            .iter()
            .filter(|client| client.contains("name=distlock"));
        ours.filter(|client| !client.contains("cmd=cluster"))
            .count()
            == 0
    });
}

/// All threads share one connection for attempts and releases, one for renewals and one for
/// subscriptions. A node that is asked for the slot map has one more connection, for that.
#[test]
fn client_has_three_connections_per_node_once_needed() {
    let cluster = Cluster::steady();
    let clients = ["one", "other"]
        .map(|name| client_with(&cluster.url(), &format!("watchdog=3s&client_name={name}")));
    let name = cluster.name_on(0, "counted");
    let [one, other] = [&clients[0], &clients[1]];
    use_everything(&cluster, &name, [one, other]);
    use_everything(&cluster, &name, [other, one]);
    thread::scope(|scope| {
        for thread in 0..16 {
            let (clients, name) = (&clients, format!("{thread}:{{{name}}}"));
            scope.spawn(move || {
                for round in 0..20 {
                    turn(&clients[round % 2], &name);
                }
            });
        }
    });
    for client in ["one", "other"] {
        for node in 0..cluster.len() {
            let lines = cluster.node(node).probe().clients();
            let ours = lines
                .iter()
                .filter(|line| line.contains(&format!(" name={client} ")));
            let (ask, work): (Vec<_>, Vec<_>) = ours.partition(|it| it.contains(" cmd=cluster"));
            assert!(ask.len() <= 1, "{ask:#?}");
            assert_eq!(
                work.len(),
                if node == 0 { 3 } else { 0 },
                "of {client} to {node}: {work:#?}"
            );
        }
    }
}

#[test]
fn dropped_client_leaves_no_thread_and_no_connection() {
    alone(
        "departure::dropped_client_leaves_no_thread_and_no_connection",
        nothing_is_left_of_a_client,
    );
}

fn nothing_is_left_of_a_client() {
    let cluster = Cluster::steady();
    let before = descriptors();
    let [one, other] = [(); 2].map(|()| client_with(&cluster.url(), SETTINGS));
    for node in 0..3 {
        use_everything(&cluster, &cluster.name_on(node, "gone"), [&one, &other]);
    }
    assert!(
        own_threads().iter().any(|name| name == "distlock-task"),
        "{:?}",
        own_threads()
    );
    timed(0, |_| drop((one, other)));
    eventually("no thread is left", LONG, || own_threads().is_empty());
    eventually("no connection is left", LONG, || {
        (0..cluster.len()).all(|node| connections(&cluster, node) == 0)
    });
    eventually("no descriptor is left", LONG, || descriptors() == before);
}
