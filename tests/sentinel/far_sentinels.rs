//! Sentinels at different distances that disagree: clients follow the one that knows the latest
//! failover.

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

/// The round trips to the sentinels that know the latest failover, in milliseconds.
const DISTANCES: [u64; 5] = [0, 1, 50, 150, 250];

/// Returns every combination of a round trip to the two far sentinels, and whether one of them is
/// cut off.
fn scenes() -> impl Iterator<Item = (Duration, bool)> {
    let distances = DISTANCES.into_iter().map(Duration::from_millis);
    distances.flat_map(|distance| [(distance, false), (distance, true)])
}

/// Two servers that are both masters, and three sentinels: one near, and two behind a [`Distance`].
struct Three {
    old: RedisServer,
    new: RedisServer,
    near: Liar,
    far: [Liar; 2],
    /// The delays in front of the far sentinels.
    ways: [Distance; 2],
    /// Swallows all requests to the second far sentinel, if it is cut off.
    cut: Option<Proxy>,
}

/// Swallows queries to a sentinel while the flag is set. Subscriptions continue.
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

/// Swallows every request.
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

    /// Makes the sentinels list each other with the addresses that clients use.
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

    /// Makes the far sentinels name the new master. The near sentinel still names the old one.
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
        // Long enough for the first answers on a slow machine.
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

/// The near sentinel answers first, and still names the old master: the client must follow the
/// message of a far one.
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
        // The client reports the lock that it held on the old master as lost, without any further
        // call.
        eventually("the loss is known", SOON, || !held.is_valid());
        drop(three.cut);
    }
}

/// A verification queries the sentinels, so that it finds the new master without any message.
#[test]
fn verification_finds_the_master_that_far_sentinels_name() {
    for (distance, is_one_cut) in scenes() {
        let three = Three::start(distance, is_one_cut);
        let client = three.client("watchdog=60s");
        let held = take(&client.mutex("held").unwrap());
        held.verify().unwrap();
        three.fail_over();
        // By now the client is connected to the far sentinels, and knows their usual response time.
        let what = format!("{distance:?}, one cut off: {is_one_cut}: the loss is found");
        eventually(&what, SOON, || {
            held.verify().is_err_and(|error| error.is_lost())
        });
        drop(held);
        let _next = take(&client.mutex("held").unwrap());
        assert!(three.new.probe().exists("held"));
    }
}

/// An answer still counts if it arrives after the client has stopped waiting for it.
#[test]
fn late_answer_of_far_sentinel_moves_client() {
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let (near, far) = (Liar::naming(old.port(), 1), Liar::naming(new.port(), 2));
    // The first answer takes three round trips, which is longer than a client waits for it.
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
    // The client gets no further call.
    eventually("the late answer moves it", SOON, || connections(&old) == 0);
    eventually("the loss is known", SOON, || !guard.is_valid());
    drop(guard);
    let _next = take(&lock);
    assert!(new.probe().exists("late"));
}

/// The message of a failover counts even if the sentinel that published it answers no query.
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
    // A message about another master of the same sentinel must be ignored.
    far.publish(&format!(
        "other 127.0.0.1 {} 127.0.0.1 {}",
        old.port(),
        new.port()
    ));
    take(&lock).unlock().unwrap();
    assert_eq!(connections(&new), 0);
    far.announce(old.port(), new.port());
    await_move(&lock, &new);
    // A sentinel that does not know of the failover must not move the client back.
    near.announce(new.port(), old.port());
    near.tell();
    always("it stays there", Duration::from_secs(1), || {
        drop(take(&lock));
        connections(&old) == 0
    });
}

/// Real sentinels: the near one is cut off from the others, and the old master still accepts
/// writes. No client may get a lock there that another client holds on the new master.
#[test]
fn isolated_near_sentinel_misleads_no_client_of_far_ones() {
    for distance in [0, 1, 50, 150, 250].map(Duration::from_millis) {
        let group = Group::start();
        let ways: Vec<_> = group.sentinels[1..]
            .iter()
            .map(|it| Distance::new(it.port(), distance))
            .collect();
        let wall = Arc::new(Wall::default());
        // Sentinels also notify each other of a failover directly, which the proxy prevents.
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
        // A new client of the same URL finds the lock held, too.
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
