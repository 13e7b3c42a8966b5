//! Tests of the test tools for servers at a distance and on addresses of their own.

use distlock_tests::addresses::{loopback, name};
use distlock_tests::cluster::Cluster;
use distlock_tests::distance::{Distance, FAR, Network, Reach};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::Group;
use distlock_tests::time::{Stopwatch, eventually, let_pass};
use std::net::TcpStream;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const ROUND_TRIP: Duration = Duration::from_millis(250);
const SETTINGS: &str = "watchdog=20s&command_timeout=3s&connect_timeout=2s";

fn lock_works(url: &str) {
    let client = distlock::connect(url).unwrap();
    for at in 0..6 {
        client
            .mutex(format!("apart:{at}"))
            .unwrap()
            .lock()
            .unwrap()
            .unlock()
            .unwrap();
    }
}

#[test]
fn far_server_answers_a_round_trip_later() {
    let server = RedisServer::start();
    let way = Distance::of(server.port(), FAR);
    let mut probe = Probe::connect(way.port());
    let watch = Stopwatch::start();
    assert_eq!(probe.command(&["PING"]).text(), "PONG");
    assert!(watch.elapsed() >= ROUND_TRIP, "{:?}", watch.elapsed());
}

/// The tool holds the bytes back without losing them, as when the network of a connection fails.
#[test]
fn cut_off_server_answers_when_it_is_near_again() {
    let server = RedisServer::start();
    let network = Network::new([(server.port(), Reach::CutOff)]);
    let mut probe = Probe::connect(network.ports()[0]);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| probe.command(&["SET", "a", "1"]).text());
        let_pass(ROUND_TRIP);
        assert!(!asked.is_finished() && !server.probe().exists("a"));
        network.set(0, Reach::Near);
        eventually("it answers", SOON, || asked.is_finished());
        assert_eq!(asked.join().unwrap(), "OK");
    });
}

/// No node listens at the address of another node. Clients that know only host names find all
/// nodes.
#[test]
fn cluster_nodes_have_addresses_and_names_of_their_own() {
    let cluster = Cluster::start_apart(|_| Vec::new());
    let (first, second) = (loopback(Cluster::address(0)), cluster.node(1).port());
    assert!(TcpStream::connect((first.as_str(), cluster.node(0).port())).is_ok());
    assert!(TcpStream::connect((first, second)).is_err());
    let shown = cluster.node(0).probe().command(&["CLUSTER", "SLOTS"]);
    for node in 0..cluster.len() {
        let address = format!("Text({:?})", loopback(Cluster::address(node)));
        assert!(
            format!("{shown:?}").contains(&address),
            "{address}: {shown:?}"
        );
    }
    for host in [loopback, name] {
        lock_works(&format!("{}?{SETTINGS}", cluster.url_at(&[0, 1], host)));
    }
}

/// The client must not reach a node past the tool: once a node is cut off, its locks are
/// unavailable.
#[test]
fn cluster_is_reached_over_a_network_alone() {
    let cluster = Cluster::steady();
    let network = cluster.network(|node| if node == 1 { FAR } else { Reach::Near });
    let url = format!("{}&{SETTINGS}", cluster.url_over(&network));
    lock_works(&url);
    let client = distlock::connect(&url).unwrap();
    let on = |node| client.mutex(cluster.name_on(node, "cut")).unwrap();
    let (cut, well) = (on(1), on(2));
    network.set(1, Reach::CutOff);
    let error = cut.try_lock_for(Duration::from_secs(1)).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    well.lock().unwrap().unlock().unwrap();
    network.set(1, Reach::Near);
    cut.try_lock_for(SOON)
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
}

#[test]
fn sentinels_name_masters_at_addresses_of_their_own() {
    let group = Group::start_apart();
    let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", group.name()];
    let asked = |at: usize| group.sentinels[at].probe().command(&ask).texts();
    assert_eq!(asked(0)[0], loopback(31));
    for host in [loopback, name] {
        lock_works(&format!("{}?{SETTINGS}", group.url_at(host)));
    }
    let old = group.fail_over();
    let new = group.await_other_than(old);
    assert_eq!(asked(1)[0], loopback(31 + u8::try_from(new).unwrap()));
    lock_works(&format!("{}?{SETTINGS}", group.url_at(loopback)));
}
