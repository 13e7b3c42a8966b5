//! Tests without a cluster.

use super::*;
use lock_core::{ClientId, Config, Context, SystemClock};
use lock_redis::servers::{Account, AddressMap, NodeSettings, Shards};

/// Returns a map without a reply, which connects to no server.
fn cluster_map() -> Arc<ClusterMap> {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let config = Config::from_url("redis+cluster://127.0.0.1:1").unwrap();
    let format = Format::of(&config).unwrap();
    let factory = NodeFactory {
        settings: NodeSettings::new(&config, 0, &context, format).unwrap(),
        addresses: AddressMap::default(),
        trouble: Arc::new(|| ()),
    };
    let bound = Duration::from_secs(1);
    ClusterMap::new(factory, Arc::default(), Vec::new(), bound, Channels::Plain)
}

fn at(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

/// If a dead node were queried first, all waiting requests would be delayed by a time-out.
#[test]
fn suspect_node_is_asked_last_until_it_answers() {
    let cluster_map = cluster_map();
    let node = |port| {
        cluster_map
            .map
            .write()
            .node(&at(port), &cluster_map.factory)
            .unwrap()
    };
    let masters: Vec<_> = (1..6).map(node).collect();
    let last = || cluster_map.known_nodes().last().map(|node| node.number);
    cluster_map.suspect(&masters[2]);
    assert!(cluster_map.is_asked_for(), "and at once, by the others");
    for _ in 0..50 {
        assert_eq!(last(), Some(masters[2].number));
    }
    masters[2].set_suspect(false);
    assert!(
        (0..1_000).any(|_| last() != Some(masters[2].number)),
        "they take turns"
    );
}

/// A moving slot may go to a node without slots, or to one that the queried node does not know.
#[test]
fn requests_continue_on_a_node_known_by_a_redirect_only() {
    let cluster_map = cluster_map();
    let take_over = |port: u16| {
        let id = port.to_string();
        let told = Shards::of_master(1, &id, at(port), 0..=9);
        let left = cluster_map
            .map
            .write()
            .take_over(&told, &cluster_map.factory)
            .unwrap();
        left.gone
            .iter()
            .map(|node| node.address.port)
            .collect::<Vec<_>>()
    };
    assert_eq!(take_over(1), []);
    cluster_map
        .map
        .write()
        .node(&at(2), &cluster_map.factory)
        .unwrap();
    assert_eq!(
        take_over(1),
        [],
        "the next node of a slot that is just moving"
    );
    cluster_map
        .map
        .write()
        .moved(9, &at(3), &cluster_map.factory)
        .unwrap();
    assert_eq!(take_over(1), [], "where a slot has gone");
    assert_eq!(
        take_over(4),
        [1],
        "one that was a master and is unknown by now"
    );
}

#[test]
fn node_of_another_id_at_the_same_address_is_another_member() {
    let cluster_map = cluster_map();
    let take_over = |id: &str| {
        let told = Shards::of_master(1, id, at(1), 0..=9);
        let left = cluster_map
            .map
            .write()
            .take_over(&told, &cluster_map.factory)
            .unwrap();
        (left.gone.len(), cluster_map.look(5).unwrap().number)
    };
    let (_, first) = take_over("a");
    assert_eq!(take_over("a"), (0, first));
    let (gone, second) = take_over("b");
    assert!(gone == 1 && second != first, "its connections are ended");
    let by_address = cluster_map
        .map
        .write()
        .node(&at(1), &cluster_map.factory)
        .unwrap();
    assert_eq!(
        (by_address.number, by_address.node.identity().as_deref()),
        (second, Some("b"))
    );
}

/// A survey lasts until its connect timeout, and longer if many nodes are dead.
#[test]
fn silence_counts_through_surveys_of_any_length() {
    let (map, start) = (cluster_map(), SystemClock.now());
    for (length, pause) in [(1, 5), (19, 6), (60, 0), (600, 9)]
        .map(|(length, pause)| (Duration::from_secs(length), Duration::from_secs(pause)))
    {
        *map.silence.lock() = None;
        let mut begun = start;
        for number in 0..10 {
            let silence = map.silence(begun, begun + length);
            assert_eq!(silence, (length + pause) * number, "{length:?}, {pause:?}");
            begun = begun + length + pause;
        }
    }
}

/// Known nodes may have answered other clients, which renewed their locks, in the meantime.
#[test]
fn silence_starts_anew_after_a_long_pause() {
    let (map, start) = (cluster_map(), SystemClock.now());
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(map.silence(at(0), at(1)), Duration::ZERO);
    assert_eq!(map.silence(at(2), at(8)), Duration::from_secs(7));
    assert_eq!(map.silence(at(60), at(61)), Duration::ZERO);
    assert_eq!(map.silence(at(61), at(64)), Duration::from_secs(3));
}

/// A node that was moved to another cluster keeps its ID.
#[test]
fn node_is_believed_by_its_id_and_that_of_another() {
    let cluster_map = cluster_map();
    let map = &cluster_map.map;
    let nodes = |ids: &[&str]| -> Vec<_> {
        let ports = 1..;
        ids.iter()
            .zip(ports)
            .map(|(id, port)| ((*id).to_owned(), at(port)))
            .collect()
    };
    let is_of = |id: &str, listed: &[&str]| {
        let (id, asked_at) = (id.to_owned(), at(9));
        map.read().is_of(&Account {
            asked_at,
            id,
            listed: nodes(listed),
        })
    };
    map.write().note(&nodes(&["a"]));
    assert!(is_of("a", &["a", "x"]) && !is_of("x", &["a", "x"]));
    map.write().note(&nodes(&["a", "b", "c"]));
    assert!(is_of("a", &["a", "c"]) && !is_of("a", &["a", "x"]) && !is_of("x", &["a", "b", "c"]));
}

#[test]
fn address_listed_with_two_ids_is_known_by_the_later_list() {
    let cluster_map = cluster_map();
    let mut map = cluster_map.map.write();
    let id_of = |map: &mut SlotMap| {
        let node = map.node(&at(1), &cluster_map.factory).unwrap();
        node.node.identity().as_deref().map(str::to_owned)
    };
    map.note(&[("a".to_owned(), at(1))]);
    map.note(&[("b".to_owned(), at(1))]);
    assert!(map.knows_node_at(&at(1)));
    assert_eq!(id_of(&mut map).as_deref(), Some("b"));
    map.note(&[("c".to_owned(), at(1)), ("d".to_owned(), at(1))]);
    assert!(
        !map.knows_node_at(&at(1)),
        "it is asked for, although there is a node"
    );
}

/// A redirect to `?` leads to the only known node on its port, and never to the host of the reply.
#[test]
fn redirect_without_a_host_leads_to_the_only_node_on_its_port() {
    let cluster_map = cluster_map();
    let (from, to) = (Address::new("10.0.0.1", 1), Address::new("?", 2));
    let from = cluster_map
        .map
        .write()
        .node(&from, &cluster_map.factory)
        .unwrap();
    let leads_to = || cluster_map.destination(&from, to.clone());
    let note = |id: &str, host| {
        cluster_map
            .map
            .write()
            .note(&[(id.to_owned(), Address::new(host, 2))]);
    };
    assert!(!leads_to().has_host());
    note("a", "?");
    assert!(!leads_to().has_host());
    note("b", "10.0.0.2");
    assert_eq!(leads_to(), Address::new("10.0.0.2", 2));
    note("c", "10.0.0.3");
    assert!(!leads_to().has_host(), "it is one of two");
    let to = cluster_map.destination(&from, Address::new("", 2));
    assert_eq!(
        to,
        Address::new("10.0.0.1", 2),
        "only that is the host asked"
    );
}
