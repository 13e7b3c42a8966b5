//! Addresses that lead to another server than before, and servers that are not members of the
//! quorum.

use distlock::{Client, LockGuard};
use distlock_tests::claims::judge;
use distlock_tests::contenders::Contenders;
use distlock_tests::guards::await_renewals;
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::proxy::Proxy;
use distlock_tests::quorum::{Servers, admit, place, start, url};
use distlock_tests::time::{eventually, let_pass, scaled};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
/// The longest lease, for which a server that becomes a node does not vote.
const LONGEST: Duration = Duration::from_secs(2);
const QUICK: &str =
    "max_lease=2s&node_timeout=500ms&watchdog=1500ms&command_timeout=1s&outage_limit=1s";

/// Settings with leases that are longer than every test.
const STEADY: &str = "max_lease=10m&node_timeout=2s&watchdog=5m&command_timeout=4s";

/// A quorum, and proxies through which some of its clients reach the servers.
struct Scene {
    quorum: Servers,
    addresses: Vec<Proxy>,
    url: String,
}

impl Scene {
    fn new(options: &str) -> Self {
        let quorum = Servers::with(3, 0, options);
        let addresses: Vec<_> = quorum
            .servers
            .iter()
            .map(|server| Proxy::plain(server.port()))
            .collect();
        let places: Vec<_> = addresses
            .iter()
            .map(|address| place(address.port()))
            .collect();
        Self {
            quorum,
            addresses,
            url: url(&places, options),
        }
    }

    fn run_id(&self, server: usize) -> String {
        run_id(&self.quorum.servers[server])
    }

    fn client(&self) -> Client {
        distlock::connect(&self.url).unwrap()
    }

    fn name(&self, address: usize) -> String {
        place(self.addresses[address].port())
    }
}

fn run_id(server: &RedisServer) -> String {
    server.probe().info_field("server", "run_id").unwrap()
}

/// Checks that there is one holder at a time while two groups of clients contend. In the middle, an
/// address of the first group is led elsewhere; those of the second group are not.
fn one_holder_at_a_time(scene: &Scene, lead_elsewhere: impl FnOnce(&Scene)) {
    let led = Contenders::start(&scene.url, "a", 2, 2);
    let others = Contenders::start(&scene.quorum.url, "a", 2, 2);
    let both = || led.claims().len().min(others.claims().len());
    eventually("both have had it", SOON, || both() > 5);
    lead_elsewhere(scene);
    let_pass(LONGEST * 3);
    let before = both();
    eventually("it goes on", SOON, || both() > before);
    let verdict = judge([led.stop(), others.stop()].concat());
    verdict.must_be_exact();
}

#[test]
fn address_of_another_node_gives_it_no_second_vote() {
    let scene = Scene::new(QUICK);
    one_holder_at_a_time(&scene, |scene| {
        scene.addresses[0].switch_to(scene.quorum.servers[1].port());
    });
}

#[test]
fn address_of_another_quorums_node_gets_no_vote() {
    let (scene, other) = (Scene::new(QUICK), Servers::with(3, 0, QUICK));
    one_holder_at_a_time(&scene, |scene| {
        scene.addresses[0].switch_to(other.servers[0].port());
    });
}

#[test]
fn empty_server_known_to_some_clients_has_no_vote() {
    let (scene, stranger) = (Scene::new(QUICK), start());
    one_holder_at_a_time(&scene, |scene| {
        scene.addresses[0].switch_to(stranger.port());
    });
}

/// Returns the error of an attempt that needs the vote behind the redirected address.
fn told(client: &Client) -> String {
    let lock = client.mutex("b").unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    error.to_string()
}

#[test]
fn missing_vote_is_reported_with_both_identities() {
    let (scene, other) = (Scene::new(QUICK), Servers::with(3, 0, QUICK));
    let client = scene.client();
    client.mutex("b").unwrap().lock().unwrap().unlock().unwrap();
    scene.addresses[2].switch_to(free_port());
    scene.addresses[0].switch_to(scene.quorum.servers[1].port());
    // The first attempts may fail on the connections that the switch broke.
    let parts = [
        "one and the same server",
        &scene.name(0),
        &scene.name(1),
        &scene.run_id(1),
    ];
    eventually("both addresses and the server are told", SOON, || {
        let text = told(&client);
        parts.iter().all(|part| text.contains(part))
    });
    scene.addresses[0].switch_to(other.servers[0].port());
    eventually("the other quorum is told", SOON, || {
        let text = told(&client);
        text.contains("another quorum") && text.contains(&run_id(&other.servers[0]))
    });
}

/// Renewals and `verify` use other connections than votes, so they must identify the server, too.
#[test]
fn holder_whose_addresses_lead_to_one_server_loses_the_lock() {
    let scene = Scene::new(QUICK);
    let client = scene.client();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    await_renewals(&guard);
    scene.addresses[2].switch_to(free_port());
    scene.addresses[0].switch_to(scene.quorum.servers[1].port());
    let is_lost = |guard: &LockGuard| !guard.is_valid();
    eventually("it is lost", SOON, || is_lost(&guard));
    assert!(guard.verify().is_err());
    drop(guard);
}

/// In another quorum the same name is another lock, which this quorum's clients must not free.
#[test]
fn force_unlock_frees_nothing_in_another_quorum() {
    let (scene, other) = (Scene::new(STEADY), Servers::with(3, 0, STEADY));
    let theirs = other.client().mutex("a").unwrap().lock().unwrap();
    let held_there = || other.servers[0].probe().exists("a");
    eventually("it is held on all", SOON, held_there);
    let client = scene.client();
    let lock = client.mutex("a").unwrap();
    scene.addresses[0].switch_to(other.servers[0].port());
    let guard = lock.lock().unwrap();
    assert!(lock.force_unlock().unwrap());
    assert!(held_there(), "the other quorum's");
    drop(guard);
    theirs.unlock().unwrap();
}

/// All clients must agree on one choice of the members, whichever of them begins it.
#[test]
fn concurrent_clients_begin_one_quorum() {
    const CLIENTS: usize = 6;
    let options = "max_lease=3s&node_timeout=1s&watchdog=2s&command_timeout=2s";
    let mut servers: Vec<_> = (0..5).map(|_| start()).collect();
    let places: Vec<_> = servers.iter().map(|server| place(server.port())).collect();
    let agree = |servers: &[RedisServer], epoch: u64| {
        let markers = servers
            .iter()
            .map(|server| server.probe().hgetall("distlock_quorum"));
        let mut views: Vec<_> = markers
            .map(|marker| ["quorum", "epoch", "members"].map(|field| marker.get(field).cloned()))
            .collect();
        views.dedup();
        let is_epoch = |text: &String| text.parse::<u64>().is_ok_and(|it| it >= epoch);
        views.len() == 1 && views[0][1].as_ref().is_some_and(is_epoch)
    };
    let work = |servers: &[RedisServer], epoch: u64| {
        thread::scope(|scope| {
            let clients = (0..CLIENTS).map(|client| {
                // Each client has the servers in another order.
                let mut places = places.clone();
                places.rotate_left(client % 5);
                scope.spawn(move || {
                    let lock = distlock::connect(&url(&places, options))
                        .unwrap()
                        .mutex("a");
                    lock.unwrap().lock().unwrap().unlock().unwrap();
                })
            });
            clients
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|client| client.join().unwrap());
        });
        let lock = distlock::connect(&url(&places, options))
            .unwrap()
            .mutex("a")
            .unwrap();
        eventually("all nodes are of one view", SOON, || {
            lock.lock().unwrap().unlock().unwrap();
            agree(servers, epoch)
        });
    };
    work(&servers, 1);
    // Two servers lose their data at once, and all clients notice at once: each server must be
    // readmitted in its own place, one after the other.
    for server in &mut servers[1..3] {
        server.restart();
        admit(server);
    }
    work(&servers, 3);
}

#[test]
fn replacing_server_votes_when_a_majority_has_recorded_it() {
    let mut scene = Scene::new(QUICK);
    // The quorum knows the node by another address, so one client alone cannot have it replaced.
    let (client, second) = (scene.client(), scene.client());
    let lock = client.mutex("a").unwrap();
    let also = second.mutex("also").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    // The replaced node still runs, and votes for clients that do not know of its replacement.
    let newcomer = start();
    scene.addresses[0].switch_to(newcomer.port());
    let marker = |server: &RedisServer| server.probe().hgetall("distlock_quorum");
    eventually("it is a node", SOON, || {
        lock.lock().unwrap().unlock().unwrap();
        also.lock().unwrap().unlock().unwrap();
        // Epoch 2 is the one in which the newcomer is chosen; epoch 3 has the same members.
        [1, 2]
            .iter()
            .all(|at| marker(&scene.quorum.servers[*at])["epoch"] == "3")
            && marker(&newcomer)
                .get("epoch")
                .is_some_and(|epoch| epoch == "3")
    });
    for at in [1, 2] {
        let recorded = marker(&scene.quorum.servers[at]);
        assert!(
            recorded["members"].contains(&run_id(&newcomer)),
            "{recorded:?}"
        );
        assert!(
            !recorded["members"].contains(&scene.run_id(0)),
            "{recorded:?}"
        );
    }
    scene.quorum.servers[1].kill();
    let guard = eventually("its vote counts", SOON, || lock.try_lock().ok().flatten());
    // A client that knows only the old members gets no majority with the vote of the replaced node.
    let stale = distlock::connect(&scene.quorum.url).unwrap();
    scene.quorum.servers[1].restart();
    admit(&scene.quorum.servers[1]);
    drop(guard);
    scene.quorum.servers[2].pause();
    let error = stale.mutex("c").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    scene.quorum.servers[2].resume();
    let free = lock.try_lock_for(scaled(SOON)).unwrap();
    free.expect("the others are there").unlock().unwrap();
}
