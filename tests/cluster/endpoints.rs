//! Nodes that are reached over TLS, by IPv6, or by names.

use crate::scene::{LONG, client_with, take, turn};
use distlock_tests::authority::Authority;
use distlock_tests::cluster::{Cluster, Failover};
use distlock_tests::rights;
use distlock_tests::time::eventually;
use distlock_tests::version::{skip, skipped_before_7};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

/// Takes locks on all nodes. One of them is held, and has a waiter, while its slot moves and then
/// its new master fails over.
fn locks_live_on(cluster: &Cluster, url: &str, more: &str) {
    let settings = format!("watchdog=10s&command_timeout=1s{more}");
    let [one, other] = [(); 2].map(|()| client_with(url, &settings));
    for node in 0..3 {
        turn(&one, &cluster.name_on(node, "lives"));
    }
    let name = cluster.name_on(0, "moves");
    let slot = cluster.slot(&name);
    let held = take(&one, &name);
    thread::scope(|scope| {
        let waits = scope.spawn(|| turn(&other, &name));
        let mut probe = cluster.probe(&name);
        eventually("it waits", LONG, || probe.listeners() > 0);
        cluster.move_slot(slot, 0, 1);
        cluster.wait_for_owner(slot, 1);
        assert!(held.verify().unwrap() > Duration::ZERO);
        cluster.wait_for_replicas(1);
        cluster.fail_over(1, Failover::Plain);
        assert!(held.verify().unwrap() > Duration::ZERO);
        held.unlock().unwrap();
        waits.join().unwrap();
    });
}

/// All connections use TLS, also those between the nodes. The nodes announce a host name, for which
/// their certificate is valid.
#[test]
fn cluster_over_tls_keeps_locks() {
    if skipped_before_7("a port of the bus beside that for TLS, and host names") {
        return;
    }
    let authority = Authority::new();
    authority.certify("server", "localhost", 2090);
    let mut ports = Vec::new();
    let cluster = Cluster::start_each(|_| {
        let (port, mut arguments) = authority.arguments();
        ports.push(port);
        let more = [
            "--tls-auth-clients",
            "no",
            "--tls-cluster",
            "yes",
            "--tls-replication",
            "yes",
        ];
        arguments.extend(more.map(str::to_owned));
        let names = ["--cluster-announce-hostname", "localhost"];
        arguments.extend(names.map(str::to_owned));
        arguments.extend(["--cluster-preferred-endpoint-type", "hostname"].map(str::to_owned));
        arguments
    });
    let plain = |node: usize| cluster.node(node).probe();
    let login = rights::LOGIN;
    let url = format!(
        "rediss+cluster://{login}@localhost:{},localhost:{}",
        ports[0], ports[1]
    );
    let ca = authority.file("ca.crt");
    locks_live_on(&cluster, &url, &format!("&tls_ca={ca}"));
    // No connection of the client leads to a port without TLS.
    for node in 0..cluster.len() {
        let port = format!("laddr=127.0.0.1:{} ", cluster.node(node).port());
        let clients = plain(node).clients();
        let ours = clients
            .iter()
            .filter(|client| client.contains("name=distlock"));
        assert!(
            ours.clone().all(|client| !client.contains(&port)),
            "{clients:?}"
        );
    }
    // The certificate is not valid for the addresses of the nodes.
    let url = format!(
        "rediss+cluster://{login}@127.0.0.1:{}?tls_ca={ca}",
        ports[0]
    );
    let error = distlock::connect(&url)
        .unwrap()
        .mutex("a")
        .unwrap()
        .try_lock()
        .unwrap_err();
    assert!(
        error.is_configuration() && error.to_string().contains("`tls_name"),
        "{error}"
    );
}

#[test]
fn cluster_over_ipv6_keeps_locks() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skip("IPv6: this machine has none");
    }
    let arguments = ["--bind", "127.0.0.1", "::1", "--cluster-announce-ip", "::1"];
    let cluster = Cluster::start_with(&arguments);
    let url = cluster.url().replace("127.0.0.1", "[::1]");
    locks_live_on(&cluster, &url, "");
    for node in 0..cluster.len() {
        let clients = cluster.node(node).probe().clients();
        let mut ours = clients
            .iter()
            .filter(|client| client.contains("name=distlock"));
        assert!(
            ours.all(|client| client.contains("laddr=[::1]:")),
            "{clients:?}"
        );
    }
    // An announced IPv6 address may be mapped to another address.
    let map = format!("[::1]:{0}=127.0.0.1:{0}", cluster.node(0).port());
    let mapped = client_with(&url, &format!("address_map={map}"));
    turn(&mapped, &cluster.name_on(0, "mapped"));
    let clients = cluster.node(0).probe().clients();
    let is_mapped =
        |client: &String| client.contains("name=distlock") && client.contains("laddr=127.0.0.1:");
    assert!(clients.iter().any(is_mapped), "{clients:?}");
}

/// Every node has an address of its own and announces a host name, except one that has no host
/// name.
#[test]
fn node_without_a_host_name_is_reached_by_its_ip_address() {
    let unnamed = 1;
    let ip = |node: usize| format!("127.0.0.{}", 21 + node);
    let cluster = Cluster::start_each(|node| {
        let mut arguments = vec!["--bind".to_owned(), "127.0.0.1".to_owned(), ip(node)];
        arguments.extend(["--cluster-announce-ip".to_owned(), ip(node)]);
        arguments.extend(["--cluster-preferred-endpoint-type", "hostname"].map(str::to_owned));
        if node != unnamed {
            arguments.extend([
                "--cluster-announce-hostname".to_owned(),
                format!("node{node}.test"),
            ]);
        }
        arguments
    });
    let hosts = [0, 2].map(|node| format!("{}:{}", ip(node), cluster.node(node).port()));
    let url = format!("redis+cluster://{}@{}", rights::LOGIN, hosts.join(","));
    let map: Vec<_> = (0..cluster.len())
        .map(|node| format!("node{node}.test={}", ip(node)))
        .collect();
    let map = format!("&address_map={}", map.join(","));
    let client = client_with(&url, &format!("watchdog=10s{map}"));
    let held = take(&client, &cluster.name_on(unnamed, "unnamed"));
    let ours = format!("laddr={}:", ip(unnamed));
    let clients = cluster.node(unnamed).probe().clients();
    let is_ours = |it: &String| it.contains("name=distlock") && it.contains(&ours);
    assert!(clients.iter().any(is_ours), "{clients:?}");
    held.unlock().unwrap();
    locks_live_on(&cluster, &url, &map);
}
