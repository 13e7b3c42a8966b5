//! Tests of [`Shards`]: replies of several server versions, and the slots and nodes read from them.

use super::*;

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.into())
}

fn list<const N: usize>(items: [Reply; N]) -> Reply {
    Reply::Array(items.into())
}

/// The replying node, queried at the host `teller`.
const TELLER: Reporter<'_> = Reporter {
    host: "teller",
    id: "self",
    port: Port::Plain,
};

/// A node in `CLUSTER SHARDS`; its ID is its port.
fn node(port: i64, endpoint: Reply, role: &str, health: &str) -> Reply {
    node_of(&port.to_string(), port, endpoint, "10.0.0.9", role, health)
}

fn node_of(id: &str, port: i64, endpoint: Reply, ip: &str, role: &str, health: &str) -> Reply {
    let pairs = [
        [bulk("id"), bulk(id)],
        [bulk("port"), Reply::Int(port)],
        [bulk("tls-port"), Reply::Int(port + 1)],
        [bulk("ip"), bulk(ip)],
        [bulk("endpoint"), endpoint],
        [bulk("role"), bulk(role)],
        [bulk("replication-offset"), Reply::Int(7)],
        [bulk("health"), bulk(health)],
    ];
    Reply::Array(pairs.into_iter().flatten().collect())
}

fn shard(slots: &[i64], nodes: Vec<Reply>) -> Reply {
    let slots = Reply::Array(slots.iter().copied().map(Reply::Int).collect());
    list([bulk("slots"), slots, bulk("nodes"), Reply::Array(nodes)])
}

/// A node in `CLUSTER SLOTS`.
fn at(id: &str, host: Reply, port: i64, more: Vec<Reply>) -> Reply {
    list([host, Reply::Int(port), bulk(id), Reply::Array(more)])
}

fn range(from: i64, to: i64, nodes: &[&Reply]) -> Reply {
    let nodes = nodes.iter().map(|&node| node.clone());
    Reply::Array(
        [Reply::Int(from), Reply::Int(to)]
            .into_iter()
            .chain(nodes)
            .collect(),
    )
}

fn shards_of(reply: &Reply, reporter: &Reporter<'_>) -> (Vec<Shard>, Vec<(String, Address)>) {
    owners(&read_shards(reply, reporter).unwrap())
}

#[test]
fn shards_list_the_replicas_that_are_not_down() {
    let reply = list([
        shard(
            &[0, 1, 5, 5],
            vec![
                node(2, bulk("b"), "replica", "online"),
                node(1, bulk("a"), "master", "online"),
                node(3, bulk("c"), "replica", "loading"),
                node(4, bulk("d"), "replica", "failed"),
            ],
        ),
        shard(&[], vec![node(5, bulk("e"), "master", "online")]),
    ]);
    let (shards, nodes) = shards_of(&reply, &TELLER);
    assert_eq!(shards.len(), 1, "a master without slots serves nothing");
    assert_eq!(nodes.len(), 5, "and is known all the same: {nodes:?}");
    assert_eq!(
        (shards[0].id.as_str(), &nodes[4].1),
        ("1", &Address::new("e", 5))
    );
    assert_eq!(shards[0].slots, [0..=1, 5..=5]);
    assert_eq!(shards[0].master, Address::new("a", 1));
    assert_eq!(
        shards[0].replicas,
        [Address::new("b", 2), Address::new("c", 3)]
    );
    assert!(!shards[0].has_no_replica);
    let lonely = |health| vec![node(1, bulk("a"), "master", health)];
    let alone = list([shard(&[0, 1], lonely("online"))]);
    assert!(shards_of(&alone, &TELLER).0[0].has_no_replica);
    let down = [
        lonely("online"),
        vec![node(4, bulk("d"), "replica", "failed")],
    ]
    .concat();
    let down = list([shard(&[0, 1], down)]);
    assert!(!shards_of(&down, &TELLER).0[0].has_no_replica);
    let (tls, _) = shards_of(
        &reply,
        &Reporter {
            port: Port::Tls,
            ..TELLER
        },
    );
    assert_eq!(tls[0].master, Address::new("a", 2));
}

/// For each endpoint and IP address, the address that the master gets, or none.
#[test]
fn only_an_absent_endpoint_is_the_address_asked() {
    let reporter = Reporter {
        host: "::1",
        ..TELLER
    };
    for (id, endpoint, ip, expected) in [
        ("1", bulk(""), "10.0.0.9", Some("[::1]:1")),
        ("1", Reply::Nil, "10.0.0.9", Some("[::1]:1")),
        ("1", bulk("?"), "10.0.0.9", Some("10.0.0.9:1")),
        ("1", bulk("?"), "fd00::9", Some("[fd00::9]:1")),
        ("1", bulk("?"), "", None),
        ("1", bulk("?"), "?", None),
        // The replying node itself may not know its address.
        ("self", bulk("?"), "", Some("[::1]:1")),
        ("self", bulk("?"), "10.0.0.9", Some("10.0.0.9:1")),
        ("1", bulk("n1.example"), "10.0.0.9", Some("n1.example:1")),
    ] {
        let expected: Vec<_> = expected.into_iter().map(str::to_owned).collect();
        let masters = |(shards, nodes): Listed| {
            assert_eq!(nodes.len(), 1, "it is a member all the same");
            shards
                .iter()
                .map(|it| it.master.to_string())
                .collect::<Vec<_>>()
        };
        let node = node_of(id, 1, endpoint.clone(), ip, "master", "online");
        let reply = list([shard(&[0, 9], vec![node])]);
        assert_eq!(
            masters(shards_of(&reply, &reporter)),
            expected,
            "{endpoint:?} {ip}"
        );
        let node = at(id, endpoint.clone(), 1, vec![bulk("ip"), bulk(ip)]);
        let slots = read_slots(&list([range(0, 9, &[&node])]), &reporter).unwrap();
        assert_eq!(
            masters(merge(&[], slots)),
            expected,
            "{endpoint:?} {ip} in SLOTS"
        );
    }
}

#[test]
fn shard_with_two_healthy_masters_has_no_known_master() {
    let masters = |health| {
        let nodes = [(1, "a", health), (2, "b", "online")];
        let nodes = nodes.map(|(id, host, health)| node(id, bulk(host), "master", health));
        read_shards(&list([shard(&[0, 16_383], nodes.into())]), &TELLER).unwrap()
    };
    let groups = masters("fail");
    assert_eq!(owners(&groups).0[0].master.host, "b");
    assert!(names_all_owners(&groups));
    assert!(!has_all_slots(&masters("online")), "SLOTS is asked");
}

/// After a failover, Redis 7.2.0 to 7.4.1 omit the slots of the new master until the replaced
/// master is back. The replies were captured from 7.2.4.
#[test]
fn slots_that_a_shard_does_not_list_are_those_of_slots() {
    let away = node(1, bulk("a"), "master", "fail");
    let nodes = || vec![away.clone(), node(2, bulk("b"), "master", "online")];
    let well = |slots: &[i64], replica| {
        let nodes = [
            node(3, bulk("c"), "master", "online"),
            node(4, bulk("d"), "replica", replica),
        ];
        shard(slots, nodes.into())
    };
    let slots = list([
        range(0, 5460, &[&at("2", bulk("b"), 2, vec![])]),
        range(5461, 16_383, &[&at("3", bulk("c"), 3, vec![])]),
    ]);
    let slots = || read_slots(&slots, &TELLER).unwrap();
    let groups = list([shard(&[], nodes()), well(&[5461, 16_383], "failed")]);
    let groups = read_shards(&groups, &TELLER).unwrap();
    assert!(!names_all_owners(&groups) && !has_all_slots(&groups));
    let (shards, all) = merge(&groups, slots());
    assert_eq!(shards[0].slots, [0..=5460]);
    assert_eq!(
        (shards[0].id.as_str(), &shards[0].master),
        ("2", &Address::new("b", 2))
    );
    assert!(
        shards[0].has_no_replica,
        "as the versions list it that list its slots"
    );
    assert_eq!(
        shards[1].replicas_down,
        [Address::new("d", 4)],
        "SLOTS does not list it"
    );
    assert!(!shards[1].has_no_replica);
    let ids: Vec<_> = all.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(
        ids,
        ["1", "2", "3", "4"],
        "the one that is away is a member"
    );
    // The new master's shard is complete once the replaced master is a replica, or has a shard of
    // its own.
    let back = [
        node(1, bulk("a"), "replica", "online"),
        node(2, bulk("b"), "master", "online"),
    ];
    let back = shard(&[0, 5460], back.into());
    let left = [
        shard(&[0, 5460], nodes()[1..].into()),
        shard(&[], vec![away.clone()]),
    ];
    for first in [vec![back], left.into()] {
        let all = [first, vec![well(&[5461, 16_383], "online")]].concat();
        assert!(names_all_owners(
            &read_shards(&Reply::Array(all), &TELLER).unwrap()
        ));
    }
}

/// A healthy master without slots may have slots according to `CLUSTER SLOTS`, although another
/// shard lists them, too.
#[test]
fn healthy_master_without_slots_has_those_of_slots() {
    let groups = list([
        shard(&[0, 16_383], vec![node(1, bulk("a"), "master", "online")]),
        shard(&[], vec![node(2, bulk("b"), "master", "online")]),
    ]);
    let groups = read_shards(&groups, &TELLER).unwrap();
    assert!(has_all_slots(&groups) && !names_all_owners(&groups));
    let slots = list([
        range(0, 9, &[&at("2", bulk("b"), 2, vec![])]),
        range(10, 16_383, &[&at("1", bulk("a"), 1, vec![])]),
    ]);
    let (shards, all) = merge(&groups, read_slots(&slots, &TELLER).unwrap());
    let owned: Vec<_> = shards
        .iter()
        .map(|it| (it.id.as_str(), &it.slots[..]))
        .collect();
    assert_eq!(owned, [("2", &[0..=9][..]), ("1", &[10..=16_383])]);
    assert_eq!(all.len(), 2);
    assert_eq!(
        owners(&groups).0.len(),
        1,
        "where SLOTS may not be asked, SHARDS is enough"
    );
}

#[test]
fn slot_ranges_of_one_master_are_joined() {
    let node = |host: &str, port| at(host, bulk(host), port, vec![]);
    let (a, b, c) = (node("a", 1), node("b", 2), node("c", 3));
    let reply = list([
        range(0, 4, &[&a, &b]),
        range(5, 5, &[&c, &b]),
        range(6, 16_383, &[&a, &b]),
    ]);
    let (shards, nodes) = read_slots(&reply, &TELLER).unwrap();
    assert_eq!(nodes.len(), 3);
    assert_eq!(shards.len(), 2);
    assert_eq!(shards[0].slots, [0..=4, 6..=16_383]);
    assert_eq!(shards[0].replicas, [Address::new("b", 2)]);
    assert!(read_slots(&list([range(0, 16_384, &[&a, &b])]), &TELLER).is_none());
}

#[test]
fn epoch_is_read_from_cluster_info() {
    let info = bulk("cluster_state:ok\r\ncluster_current_epoch:12\r\ncluster_my_epoch:3\r\n");
    assert_eq!(epoch(&info), Some(12));
    assert_eq!(epoch(&bulk("x")), None);
    assert!(is_up(&info) && is_up(&bulk("x")));
    assert!(!is_up(&bulk(
        "cluster_state:fail\r\ncluster_current_epoch:12\r\n"
    )));
}

#[test]
fn addresses_are_parsed_with_and_without_brackets() {
    for (text, host) in [
        ("a.example:1", "a.example"),
        ("[::1]:1", "::1"),
        ("fe80::2:1", "fe80::2"),
        (":1", ""),
    ] {
        assert_eq!(Address::parse(text), Some(Address::new(host, 1)), "{text}");
    }
    for text in ["a", "a:", "a:0", "a:65536", "a:x"] {
        assert_eq!(Address::parse(text), None, "{text}");
    }
}
