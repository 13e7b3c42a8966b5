//! Sentinels at different distances that disagree: the one that knows the latest failover counts.

use crate::fake_sentinel::Liar;
use crate::partition::Wall;
use crate::scene::{SOON, await_move, client, connect, take};
use distlock::Client;
use distlock_tests::distance::Distance;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::Request;
use distlock_tests::sentinel::{Group, is_master, keep_a_master, url};
use distlock_tests::time::{always, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The distances of the sentinels that know better, as round trips in milliseconds.
const DISTANCES: [u64; 5] = [0, 1, 50, 150, 250];

/// How far the ones that know better are away, and whether one of the two is cut off.
fn scenes() -> impl Iterator<Item = (Duration, bool)> {
    let distances = DISTANCES.into_iter().map(Duration::from_millis);
    distances.flat_map(|distance| [(distance, false), (distance, true)])
}

/// Two servers that are both masters, and three sentinels: one is near, two are behind a distance.
struct Three {
    old: RedisServer,
    new: RedisServer,
    near: Liar,
    far: [Liar; 2],
    /// In front of the far ones.
    ways: [Distance; 2],
    /// Swallows what is sent to the second of the far ones, if it is cut off.
    cut: Option<Proxy>,
}

/// Swallows questions while it is up. Subscriptions go on.
#[derive(Default)]
struct Mute(AtomicBool);

impl Plan for Mute {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_question = request.word(0) == "SENTINEL";
        if is_question && self.0.load(Ordering::SeqCst) {
            Fault::SwallowRequest
        } else {
            Fault::Pass
        }
    }
}

/// Answers nothing at all.
struct Hole;

impl Plan for Hole {
    fn fate(&self, _: &mut Request) -> Fault {
        Fault::SwallowRequest
    }
}

impl Three {
    fn start(distance: Duration, is_one_cut: bool) -> Self {
        let [old, new] = [(); 2].map(|()| RedisServer::start());
        let near = Liar::naming(old.port(), 1);
        let far = [(); 2].map(|()| Liar::naming(old.port(), 1));
        let cut = is_one_cut.then(|| Proxy::new(far[1].port(), Arc::new(Hole)));
        let last = cut.as_ref().map_or(far[1].port(), Proxy::port);
        let ways = [far[0].port(), last].map(|port| Distance::new(port, distance));
        Self {
            old,
            new,
            near,
            far,
            ways,
            cut,
        }
        .introduced()
    }

    fn ports(&self) -> [u16; 3] {
        [self.near.port(), self.ways[0].port(), self.ways[1].port()]
    }

    /// They know each other by the addresses that clients use.
    fn introduced(self) -> Self {
        let ports = self.ports();
        let known: Vec<_> = ports
            .iter()
            .map(|port| (format!("sentinel-{port}"), *port))
            .collect();
        for (at, liar) in [&self.near, &self.far[0], &self.far[1]]
            .into_iter()
            .enumerate()
        {
            let mut others = known.clone();
            let (id, _) = others.remove(at);
            liar.know(&id, &others);
        }
        self
    }

    fn client(&self, options: &str) -> Client {
        connect(&format!("{}?{options}", url("mymaster", &self.ports())))
    }

    /// The far ones have heard of a failover, and the near one has not.
    fn fail_over(&self) {
        self.far
            .iter()
            .for_each(|liar| liar.name(self.new.port(), 2));
    }
}

fn connections(server: &RedisServer) -> usize {
    let clients = server.probe().clients();
    clients
        .iter()
        .filter(|client| client.contains("name=distlock"))
        .count()
}

#[test]
fn client_starts_on_the_master_that_far_sentinels_name() {
    for (distance, is_one_cut) in scenes() {
        let three = Three::start(distance, is_one_cut);
        three.fail_over();
        // Time enough for the first answers on a machine that is slow.
        let settings = "watchdog=60s&connect_timeout=20s&command_timeout=20s";
        let guard = take(&three.client(settings).mutex("first").unwrap());
        let there = [&three.old, &three.new].map(|server| server.probe().exists("first"));
        assert_eq!(
            there,
            [false, true],
            "{distance:?}, one cut off: {is_one_cut}"
        );
        guard.unlock().unwrap();
        assert_eq!(connections(&three.old), 0, "it was never asked");
    }
}

/// The near sentinel, which answers first, goes on naming the old master.
#[test]
fn message_of_far_sentinel_moves_client_at_every_distance() {
    for (distance, is_one_cut) in scenes() {
        let three = Three::start(distance, is_one_cut);
        let client = three.client("watchdog=60s");
        let held = take(&client.mutex("held").unwrap());
        assert!(three.old.probe().exists("held"));
        eventually("it listens", SOON, || three.far[0].listeners() == 1);
        three.fail_over();
        three.far[0].announce(three.old.port(), three.new.port());
        let moved = client.mutex("moved").unwrap();
        let what = format!("{distance:?}, one cut off: {is_one_cut}: it moves");
        eventually(&what, SOON, || {
            drop(take(&moved));
            connections(&three.old) == 0 && connections(&three.new) > 0
        });
        // And what it held on the old one is known to be lost without any further call.
        eventually("the loss is known", SOON, || !held.is_valid());
        drop(three.cut);
    }
}

/// A verification asks the sentinels anew: without any message.
#[test]
fn verification_finds_the_master_that_far_sentinels_name() {
    for (distance, is_one_cut) in scenes() {
        let three = Three::start(distance, is_one_cut);
        let client = three.client("watchdog=60s");
        let held = take(&client.mutex("held").unwrap());
        held.verify().unwrap();
        three.fail_over();
        // Connections to the far sentinels are made by now, and their usual time is known.
        let what = format!("{distance:?}, one cut off: {is_one_cut}: the loss is found");
        eventually(&what, SOON, || {
            held.verify().is_err_and(|error| error.is_lost())
        });
        drop(held);
        let _next = take(&client.mutex("held").unwrap());
        assert!(three.new.probe().exists("held"));
    }
}

/// An answer that comes after the client has stopped waiting for it.
#[test]
fn late_answer_of_far_sentinel_moves_client() {
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let (near, far) = (Liar::naming(old.port(), 1), Liar::naming(new.port(), 2));
    // Three round trips, until it has answered, are more than any client waits for.
    let way = Distance::new(far.port(), Duration::from_millis(1_500));
    near.know("near", &[("far".to_owned(), way.port())]);
    far.know("far", &[("near".to_owned(), near.port())]);
    let url = url("mymaster", &[near.port(), way.port()]);
    let client = connect(&format!("{url}?watchdog=60s&connect_timeout=10s"));
    let lock = client.mutex("late").unwrap();
    let guard = take(&lock);
    assert!(
        old.probe().exists("late"),
        "the far one has not answered yet"
    );
    // Nothing more is asked of the client.
    eventually("the late answer moves it", SOON, || connections(&old) == 0);
    eventually("the loss is known", SOON, || !guard.is_valid());
    drop(guard);
    let _next = take(&lock);
    assert!(new.probe().exists("late"));
}

/// Where the sentinel that publishes the failover answers no question, its message counts.
#[test]
fn switch_message_of_unanswering_sentinel_counts() {
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let [near, far] = [(); 2].map(|()| Liar::naming(old.port(), 1));
    let mute = Arc::new(Mute::default());
    let proxy = Proxy::new(far.port(), Arc::clone(&mute) as _);
    near.know("near", &[("far".to_owned(), proxy.port())]);
    far.know("far", &[("near".to_owned(), near.port())]);
    let client = connect(&format!(
        "{}?watchdog=60s",
        url("mymaster", &[near.port(), proxy.port()])
    ));
    let lock = client.mutex("told").unwrap();
    take(&lock).unlock().unwrap();
    eventually("it listens", SOON, || far.listeners() == 1);
    always("it asks no more", Duration::from_millis(1_500), || {
        connections(&new) == 0
    });
    mute.0.store(true, Ordering::SeqCst);
    // Another master of the same sentinel is of no interest.
    far.publish(&format!(
        "other 127.0.0.1 {} 127.0.0.1 {}",
        old.port(),
        new.port()
    ));
    take(&lock).unlock().unwrap();
    assert_eq!(connections(&new), 0);
    far.announce(old.port(), new.port());
    await_move(&lock, &new);
    // A sentinel that has not heard of the failover leads no client back.
    near.announce(new.port(), old.port());
    near.tell();
    always("it stays there", Duration::from_secs(1), || {
        drop(take(&lock));
        connections(&old) == 0
    });
}

/// Real sentinels: the near one is cut off from the others, and the old master stays one.
#[test]
fn isolated_near_sentinel_misleads_no_client_of_far_ones() {
    for distance in [0, 1, 50, 150, 250].map(Duration::from_millis) {
        let group = Group::start();
        let ways: Vec<_> = group.sentinels[1..]
            .iter()
            .map(|it| Distance::new(it.port(), distance))
            .collect();
        let wall = Arc::new(Wall::default());
        // Sentinels tell each other of a failover directly, too.
        let door = Proxy::new(group.sentinels[0].port(), Arc::clone(&wall) as _);
        group.announce_at(&[(0, door.port()), (1, ways[0].port()), (2, ways[1].port())]);
        let ports = [group.sentinels[0].port(), ways[0].port(), ways[1].port()];
        let options = "watchdog=60s&connect_timeout=20s&command_timeout=20s";
        let near = connect(&format!("{}?{options}", group.url_of(&ports)));
        let lock = near.mutex("contended").unwrap();
        take(&lock).unlock().unwrap();
        wall.0.store(true, Ordering::SeqCst);
        door.cut_all();
        group.isolate(0);
        let old = group.master();
        keep_a_master(&group.servers[old]);
        group.fail_over_by(1);
        let new = group.await_named_by(&[1, 2], old);
        assert!(is_master(&group.servers[old]), "it takes writes still");
        assert_eq!(
            group.named()[0],
            group.servers[old].port(),
            "the near one knows of nothing"
        );
        let held = take(&client(&group, options).mutex("contended").unwrap());
        assert!(group.servers[new].probe().exists("contended"));
        let what = format!("{distance:?}: the lock is found taken");
        eventually(&what, SOON, || {
            lock.try_lock().is_ok_and(|guard| guard.is_none())
        });
        // A new client of the same URL, too.
        let fresh = connect(&format!("{}?{options}", group.url_of(&ports)));
        let found = fresh.mutex("contended").unwrap().try_lock().unwrap();
        assert!(found.is_none(), "{distance:?}: two holders");
        assert_eq!(
            group.named()[0],
            group.servers[old].port(),
            "it knows of nothing still"
        );
        held.unlock().unwrap();
    }
}
