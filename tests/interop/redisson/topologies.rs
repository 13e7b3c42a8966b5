//! Cluster, with sharded and with plain channels, and Sentinel, where Redisson waits for replicas.

use super::{NEWEST, OLDEST, with};
use crate::cases::{exact, waking};
use crate::harness::cluster::Cluster;
use crate::harness::probe::Value;
use crate::harness::process::RedisServer;
use crate::harness::sentinel::Group;
use crate::libraries::{Learns, Library, redisson};
use crate::ours::Ours;
use crate::peer::Peer;
use crate::scene::Turn;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The last line before sharded channels: it publishes plainly, on a cluster, too.
static PLAIN: Library = redisson("redisson-3.17.7");

static NOT_SHARDED: Library = with(redisson("redisson-4.7.0"), &["sharded=OFF"]);

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
        waking::they_are_soon(what, &self.peer, &self.ours, "lock", Learns::Told);
        waking::we_are_soon(what, &self.peer, &self.ours, "lock", Learns::Told);
    }
}

/// Peers are nobody in particular.
fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("//").expect("a URL");
    let hosts = rest.split_once('@').map_or(rest, |(_, hosts)| hosts);
    format!("{scheme}//{hosts}")
}

fn on_cluster(library: &'static Library, settings: &str) -> Option<(Elsewhere, Arc<Cluster>)> {
    if library.is_skipped() {
        return None;
    }
    let turn = Turn::take();
    static KEPT: Mutex<Option<Arc<Cluster>>> = Mutex::new(None);
    let cluster = Arc::clone(KEPT.lock().get_or_insert_with(Cluster::shared));
    let scene = Elsewhere::start(library, "cluster", &cluster.url(), settings, turn);
    Some((scene, cluster))
}

#[test]
fn on_a_cluster_the_newest_and_we_share_sharded_channels() {
    let Some((scene, cluster)) = on_cluster(&NEWEST, "") else { return };
    let owner = cluster.node(cluster.owner_of("lock"));
    scene.add_up("cluster, newest");
    owner.probe().reset_stats();
    scene.wake("cluster, newest");
    let mut probe = owner.probe();
    // There are none before Redis 7, and then both use plain ones, without being told.
    let has_any = !matches!(probe.command(&["PUBSUB", "SHARDNUMSUB"]), Value::Error(_));
    let [sharded, plain] = ["spublish", "publish"].map(|it| probe.command_calls(it) > 0);
    assert_eq!((sharded, plain), (has_any, !has_any));
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
    const SETTINGS: [(&str, u64); 2] =
        [("watchdog=1s", 1_000), ("watchdog=1s&format=redisson,poll=50ms", 100)];
    for (settings, bound) in SETTINGS {
        let Some((scene, _cluster)) = on_cluster(&PLAIN, settings) else { return };
        let bound = Learns::Asks(Duration::from_millis(bound));
        let took = (0..2).map(|_| waking::to_us(&scene.peer, &scene.ours, "lock", bound));
        let worst = took.max().expect("some");
        say!("cluster, 3.17 and we on other channels, {settings}: at most {worst:?}");
        assert!(worst <= bound.within(300), "{worst:?}");
        let took = (0..2).map(|_| waking::to_them(&scene.peer, &scene.ours, "lock", Learns::Told));
        let took = took.max().expect("some");
        say!("cluster, 3.17 and we on other channels: they waited {took:?}");
        assert!(took <= Learns::Asks(Duration::from_secs(1)).within(300), "{took:?}");
    }
}

fn on_sentinel(library: &'static Library, settings: &str) -> Option<(Elsewhere, Group)> {
    if library.is_skipped() {
        return None;
    }
    let turn = Turn::take();
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
    scene.wake("sentinel, newest");
}

#[test]
fn with_sentinel_the_oldest_shares_a_lock_with_us() {
    let Some((scene, _group)) = on_sentinel(&OLDEST, "") else { return };
    scene.add_up("sentinel, 3.12.0");
    scene.wake("sentinel, 3.12.0");
}
