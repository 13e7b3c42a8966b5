//! The addresses in the URL: names, mapped addresses, and addresses that do not answer.

use crate::fake_node::{FakeNode, Word, client_of, master, thirds};
use crate::scene::{SETTINGS, client_with, turn};
use distlock_tests::cluster::Cluster;
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::proxy::Proxy;
use distlock_tests::rights::LOGIN;
use std::net::{Ipv4Addr, TcpListener};

/// Half of the addresses refuse connections, or accept them and say nothing.
#[test]
fn client_starts_while_half_of_the_addresses_are_dead() {
    let cluster = Cluster::shared();
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent = silent.local_addr().unwrap().port();
    let (live, other) = (cluster.node(0).port(), cluster.node(1).port());
    let name = cluster.name_on(0, "seeds");
    for dead in [free_port(), silent] {
        for hosts in [
            format!("localhost:{dead},localhost:{live}"),
            format!("localhost:{live},localhost:{dead}"),
            format!("127.0.0.1:{dead},127.0.0.1:{live}"),
            format!("localhost:{dead},127.0.0.1:{dead},localhost:{live},localhost:{other}"),
        ] {
            turn(
                &client_with(&format!("redis+cluster://{LOGIN}@{hosts}"), SETTINGS),
                &name,
            );
        }
    }
}

/// The addresses in the URL are not those that the nodes announce, and half of them are dead.
#[test]
fn client_starts_with_mapped_addresses_of_which_half_are_dead() {
    let cluster = Cluster::shared();
    let name = cluster.name_on(0, "mapped-seeds");
    let (live, dead) = (Proxy::plain(cluster.node(0).port()), free_port());
    let map: Vec<_> = [live.port(), dead]
        .into_iter()
        .enumerate()
        .map(|(node, real)| format!("127.0.0.1:{}=127.0.0.1:{real}", cluster.node(node).port()))
        .collect();
    for hosts in [[live.port(), dead], [dead, live.port()]] {
        let hosts = hosts.map(|port| format!("127.0.0.1:{port}")).join(",");
        let settings = format!("{SETTINGS}&address_map={}", map.join(","));
        turn(
            &client_with(&format!("redis+cluster://{LOGIN}@{hosts}"), &settings),
            &name,
        );
    }
}

/// A dead address that one of two clusters lists under another name is a vote for that cluster; one
/// that neither lists is a vote for none.
#[test]
fn dead_address_votes_for_the_cluster_that_its_name_leads_to() {
    let server = RedisServer::start_cluster_node(&[]);
    let [one, other, stranger] = [(); 3].map(|()| FakeNode::before(&server));
    let dead = free_port();
    let masters = [
        master("a", dead),
        master("b", one.port()),
        master("c", other.port()),
    ];
    let shards = thirds(masters, vec![]);
    one.say(Word::new("b", 4, &shards));
    other.say(Word::new("c", 4, &shards));
    let whole = vec![(vec![[0, 16_383]], vec![master("x", stranger.port())])];
    stranger.say(Word::new("x", 9, &whole));
    let ports = [one.port(), stranger.port()]
        .map(|port| format!("127.0.0.1:{port}"))
        .join(",");
    let settings = format!("channels=plain&tracking=off&{SETTINGS}");
    let client = |dead| {
        let url = format!("redis+cluster://{LOGIN}@localhost:{dead},{ports}");
        client_with(&url, &settings)
    };
    for _ in 0..5 {
        let voted = client(dead);
        // The client uses the first cluster, in which the master of this slot is dead.
        let error = voted.mutex("lock:{b}").unwrap().try_lock().unwrap_err();
        assert!(error.to_string().contains(&dead.to_string()), "{error}");
        turn(&voted, "lock:{c}");
        let error = client(free_port())
            .mutex("lock:{c}")
            .unwrap()
            .try_lock()
            .unwrap_err();
        assert!(error.to_string().contains("is the node x"), "{error}");
    }
    // If only one cluster answers, it is used, whichever addresses do not answer.
    let alone = client_of(&[free_port(), dead, other.port()], SETTINGS);
    turn(&alone, "lock:{a}");
}
