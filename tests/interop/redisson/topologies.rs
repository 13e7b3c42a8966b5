//! Cluster, with sharded and with plain channels, and Sentinel, where Redisson waits for replicas.

use super::{NEWEST, OLDEST, REFUSED, with};
use crate::cases::holding::must_stay_ours;
use crate::cases::{exact, steadily, waking};
use crate::libraries::{Learns, Library, PLAIN, WITH_LATCH};
use crate::ours::Ours;
use crate::peer::{BOUND, Peer};
use crate::scene::Turn;
use distlock::DistLock;
use distlock_tests::cluster::Cluster;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::Group;
use distlock_tests::time::{eventually, let_pass, ms, retry_if_late};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

static NOT_SHARDED: Library = with(NEWEST, &["sharded=OFF"]);

const TIMES: u64 = 100;

/// Both sides on a store that is not one server, and one on which they count.
struct Elsewhere {
    peer: Peer,
    ours: Ours,
    data: RedisServer,
    _turn: Turn,
}

impl Elsewhere {
    fn start(
        library: &'static Library,
        theirs: &str,
        url: &str,
        settings: &str,
        turn: Turn,
    ) -> Self {
        let data = RedisServer::start();
        let (address, topology) =
            (format!("data={}", data.url_as("")), format!("topology={theirs}"));
        let peer = Peer::start(library, &without_login(url), &[&topology, &address]);
        let ours = Ours::connect(library, url, settings, data.port());
        Self { peer, ours, data, _turn: turn }
    }

    fn add_up(&self, what: &str) {
        let lock = self.ours.mutex("lock");
        exact::add_up(what, &self.peer, &lock, "lock", &self.data, (TIMES, 5));
    }

    fn wake(&self, what: &str) {
        let lock = self.ours.mutex("lock");
        retry_if_late(|| waking::both_are_soon(what, &self.peer, &lock, "lock"));
    }
}

/// Peers are nobody in particular.
fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("//").expect("a URL");
    let hosts = rest.split_once('@').map_or(rest, |(_, hosts)| hosts);
    format!("{scheme}//{hosts}")
}

fn on_cluster(library: &'static Library, settings: &str) -> Option<(Elsewhere, Arc<Cluster>)> {
    let turn = Turn::of(library)?;
    static KEPT: Mutex<Option<Arc<Cluster>>> = Mutex::new(None);
    let cluster = Arc::clone(KEPT.lock().get_or_insert_with(Cluster::shared));
    let scene = Elsewhere::start(library, "cluster", &cluster.url(), settings, turn);
    Some((scene, cluster))
}

/// Since 3.22.
#[test]
fn on_a_cluster_newer_ones_and_we_share_sharded_channels() {
    for library in [&NEWEST, &WITH_LATCH] {
        let Some((scene, cluster)) = on_cluster(library, "") else { return };
        let owner = cluster.node(cluster.owner_of("lock"));
        scene.add_up(&format!("cluster, {}", library.name));
        owner.probe().reset_stats();
        scene.wake(&format!("cluster, {}", library.name));
        let mut probe = owner.probe();
        // There are none before Redis 7, and then both use plain ones, without being told.
        let has_any = !matches!(probe.command(&["PUBSUB", "SHARDNUMSUB"]), Value::Error(_));
        let [sharded, plain] = ["spublish", "publish"].map(|it| probe.command_calls(it) > 0);
        assert_eq!((sharded, plain), (has_any, !has_any));
    }
}

#[test]
fn on_a_cluster_older_ones_and_we_share_plain_channels_if_we_are_told() {
    let Some((scene, cluster)) = on_cluster(&PLAIN, "channels=plain") else { return };
    let owner = cluster.node(cluster.owner_of("lock"));
    scene.add_up("cluster, 3.17 with channels=plain");
    owner.probe().reset_stats();
    scene.wake("cluster, 3.17 with channels=plain");
    let mut probe = owner.probe();
    assert!(probe.command_calls("publish") > 0 && probe.command_calls("spublish") == 0);
}

/// Where newer and older ones are together, all have to use what the older ones use.
#[test]
fn on_a_cluster_newer_ones_and_we_share_plain_channels_if_both_are_told() {
    let Some((scene, cluster)) = on_cluster(&NOT_SHARDED, "channels=plain") else { return };
    let owner = cluster.node(cluster.owner_of("lock"));
    owner.probe().reset_stats();
    scene.wake("cluster, newest with sharded channels off");
    let mut probe = owner.probe();
    assert!(probe.command_calls("publish") > 0 && probe.command_calls("spublish") == 0);
}

/// On different kinds of channels neither hears the other: each finds out at the end of the lease that it saw, and we within
/// `poll=`, where it is set.
#[test]
fn on_a_cluster_those_on_other_channels_are_found_free_within_a_lease_or_a_poll() {
    const LEASE: (Duration, u64) = (Duration::from_secs(1), 700);
    const POLL: (Duration, u64) = (Duration::from_millis(100), 300);
    let until = |(time, slack)| Learns::Asks(time).within(slack);
    for (settings, bound) in
        [("watchdog=1s", LEASE), ("watchdog=1s&format=redisson,poll=50ms", POLL)]
    {
        steadily(|| {
            let Some((scene, _cluster)) = on_cluster(&PLAIN, settings) else { return };
            let lock = scene.ours.mutex("lock");
            let how = Learns::Asks(bound.0);
            let took = (0..2).map(|_| waking::to_us(&scene.peer, &lock, "lock", how));
            let worst = took.max().expect("some");
            say!("cluster, 3.17 and we on other channels, {settings}: at most {worst:?}");
            assert!(worst <= until(bound), "{worst:?}");
            let took = (0..2).map(|_| waking::to_them(&scene.peer, &lock, "lock", Learns::Told));
            let took = took.max().expect("some");
            say!("cluster, 3.17 and we on other channels: they waited {took:?}");
            assert!(took <= until(LEASE), "{took:?}");
        });
    }
}

fn on_sentinel(library: &'static Library, settings: &str) -> Option<(Elsewhere, Group)> {
    let turn = Turn::of(library)?;
    let group = Group::steady();
    let scene = Elsewhere::start(library, "sentinel", &group.url(), settings, turn);
    Some((scene, group))
}

/// It waits for replicas behind each acquire and each release (since 3.12.5), and we for one behind each grant.
#[test]
fn with_sentinel_both_wait_for_replicas() {
    let Some((scene, group)) = on_sentinel(&NEWEST, "replicas=1") else { return };
    scene.add_up("sentinel, newest, replicas=1");
    let mut probe = group.probe();
    probe.reset_stats();
    scene.peer.ask("t", "lock lock 0");
    scene.peer.ask("t", "unlock lock");
    assert!(probe.command_calls("wait") >= 2, "theirs");
    probe.reset_stats();
    scene.ours.mutex("lock").lock().unwrap().unlock().unwrap();
    assert_eq!(probe.command_calls("wait"), 1, "ours");
    scene.wake("sentinel, newest");
}

/// No replica answers. Ours gives back what no replica has and says so. Theirs is an error, too, and some of its calls leave the lock
/// taken all the same: we wait for the end of that lease, and what is ours then stays ours.
#[test]
fn with_sentinel_what_their_failed_lock_leaves_taken_is_ours_when_its_lease_is_over() {
    // Longer than they wait for replicas.
    static FENCED: Library = with(NEWEST, &["kind=fenced", "watchdog=2500"]);
    static EARLY: Library = with(PLAIN, &["watchdog=2500"]);
    static LATE: Library = with(NEWEST, &["watchdog=2500"]);
    for (library, verb, leaves_it) in
        [(&FENCED, "fenced", true), (&EARLY, "lock", true), (&LATE, "lock", false)]
    {
        let Some((scene, group)) = on_sentinel(library, "replicas=1") else { return };
        // Connected, and its scripts known: what follows has a second to be answered.
        scene.peer.ask("t", "lock warm 0");
        scene.peer.ask("t", "unlock warm");
        group.servers[1..].iter().for_each(RedisServer::pause);
        let said = scene.peer.refusal("t", &format!("{verb} lock 0"));
        let is_left = group.probe().exists("lock");
        say!("{} `{verb}` that no replica has, left in the store: {is_left}: {said}", library.name);
        assert_eq!(is_left, leaves_it, "docs/INTEROP.md says otherwise");
        let lock = scene.ours.mutex("lock");
        if is_left {
            assert!(lock.try_lock().unwrap().is_none(), "it is in the store");
        }
        let mut probe = group.probe();
        eventually("its lease ends", BOUND, || !probe.exists("lock"));
        let error = lock.try_lock_for(Duration::from_secs(1)).unwrap_err();
        assert!(!probe.exists("lock"), "given back: {error}");
        group.servers[1..].iter().for_each(RedisServer::resume);
        let guard = lock.try_lock_for(BOUND).unwrap().expect("nobody has it");
        scene.peer.refusal("t", "unlock lock");
        // Over more than one of their renewals.
        must_stay_ours(&guard, Duration::from_secs(3));
        guard.unlock().unwrap();
    }
}

/// No replica answers any more: their renewal is over with the first hundred locks that it asks for, and those behind them lapse while
/// they are believed in. We take what has lapsed and nothing else.
#[test]
fn with_sentinel_what_their_renewal_does_not_come_to_is_ours_when_it_lapses() {
    // Longer than it takes to be told that no replica answered, and to try again.
    static RENEWS: Library = with(NEWEST, &["watchdog=6000"]);
    let Some((scene, group)) = on_sentinel(&RENEWS, "") else { return };
    let names: Vec<_> = (0..120).map(|number| format!("held-{number}")).collect();
    names.iter().for_each(|name| drop(scene.peer.ask("t", &format!("lock {name} 0"))));
    group.servers[1..].iter().for_each(RedisServer::pause);
    let mut probe = group.probe();
    eventually("some lapse", BOUND, || names.iter().any(|name| !probe.exists(name)));
    // They were all renewed at once.
    let_pass(ms(500));
    group.servers[1..].iter().for_each(RedisServer::resume);
    let mut lapsed = 0;
    for name in &names {
        let Some(guard) = scene.ours.mutex(name).try_lock().unwrap() else { continue };
        lapsed += 1;
        assert!(scene.peer.refusal("t", &format!("unlock {name}")).contains(REFUSED));
        guard.verify().unwrap();
        guard.unlock().unwrap();
    }
    say!("{}: {lapsed} of {} lapsed while no replica answered", RENEWS.name, names.len());
    assert!((1..names.len()).contains(&lapsed), "docs/INTEROP.md says otherwise: {lapsed}");
}

#[test]
fn with_sentinel_the_oldest_shares_a_lock_with_us() {
    let Some((scene, _group)) = on_sentinel(&OLDEST, "") else { return };
    scene.add_up("sentinel, 3.12.0");
    scene.wake("sentinel, 3.12.0");
}
