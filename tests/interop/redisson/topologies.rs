//! Cluster, with sharded and with plain channels, and Sentinel, where Redisson waits for replicas.

use super::{NEWEST, OLDEST, REFUSED, with};
use crate::cases::holding::must_stay_ours;
use crate::cases::{exact, waking};
use crate::late::{self, retry_if_late, timely};
use crate::libraries::{Learns, Library, PLAIN, WITH_LATCH};
use crate::ours::Ours;
use crate::peer::BOUND;
use crate::pool::Lent;
use crate::suite::{Permit, Suite, case};
use distlock_tests::cluster::Cluster;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::Group;
use distlock_tests::time::{eventually, let_pass, ms};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

static NOT_SHARDED: Library = with(NEWEST, &["sharded=OFF"]);

static SHARDED: [Library; 2] = [NEWEST, WITH_LATCH];

static ON_CLUSTER: [Library; 3] = [NEWEST, WITH_LATCH, PLAIN];

/// Versions that wait for replicas. If no replica answers, they leave their lock in the store or
/// release it. The lease of the watchdog is longer than that wait.
static WITH_REPLICAS: [Library; 3] = [
    Library {
        id: "newest_fenced",
        ..with(NEWEST, &["kind=fenced", "watchdog=2500"])
    },
    with(PLAIN, &["watchdog=2500"]),
    with(NEWEST, &["watchdog=2500", "attempts=0"]),
];

/// With a lease that is long enough to learn that no replica has answered, and to try again.
static RENEWS: Library = with(NEWEST, &["watchdog=4000", "attempts=0"]);

const TIMES: u64 = 100;

pub(crate) fn mount(suite: &mut Suite) {
    use Permit::{Exclusive, Shared};
    let sums = case!(cluster_locks_of_both_sides_exclude_each_other);
    suite.each(Shared, &ON_CLUSTER, sums);
    let newer = case!(cluster_with_newer_redisson_shares_sharded_channels);
    suite.each(Exclusive, &SHARDED, newer);
    let older = case!(cluster_with_older_redisson_shares_plain_channels_if_set);
    suite.exclusive(&PLAIN, older);
    let both = case!(cluster_with_newer_redisson_shares_plain_channels_if_set);
    suite.exclusive(&NOT_SHARDED, both);
    let apart = case!(cluster_release_on_unshared_channel_is_found_by_polling);
    suite.shared(&PLAIN, apart);
    suite.exclusive(
        &NEWEST,
        case!(sentinel_locks_of_both_sides_wait_for_replicas),
    );
    let failed = case!(sentinel_lock_left_by_failed_redisson_is_free_after_lease);
    suite.each(Shared, &WITH_REPLICAS, failed);
    let lapsed = case!(sentinel_lock_unrenewed_by_redisson_is_free_after_lease);
    suite.shared(&RENEWS, lapsed);
    suite.exclusive(
        &OLDEST,
        case!(sentinel_lock_is_shared_with_the_oldest_redisson),
    );
}

/// Both sides on a cluster or a group of sentinels, and one more server with the sum.
struct Elsewhere {
    peer: Lent,
    ours: Ours,
    data: RedisServer,
}

impl Elsewhere {
    fn start(library: &'static Library, theirs: &str, url: &str, settings: &str) -> Self {
        let data = RedisServer::start();
        let (address, topology) = (
            format!("data={}", data.url_as("")),
            format!("topology={theirs}"),
        );
        let peer = Lent::start(library, &without_login(url), &[&topology, &address]);
        let ours = Ours::connect(library, url, settings, data.port());
        Self { peer, ours, data }
    }

    /// Checks the sum under the lock `name`, which only one test may use, because tests share the
    /// cluster.
    fn add_up(&self, what: &str, name: &str) {
        let lock = self.ours.mutex(name);
        exact::add_up(what, &self.peer, &lock, name, &self.data, (TIMES, 5));
    }

    fn wake(&self, what: &str) {
        let lock = self.ours.mutex("lock");
        retry_if_late(late::TURN, || {
            waking::both_are_soon(what, &self.peer, &lock, "lock");
        });
    }
}

/// Returns the URL without a login, because peers log in as the default user.
fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("//").expect("a URL");
    let hosts = rest.split_once('@').map_or(rest, |(_, hosts)| hosts);
    format!("{scheme}//{hosts}")
}

fn on_cluster(library: &'static Library, settings: &str) -> (Elsewhere, Arc<Cluster>) {
    static KEPT: Mutex<Option<Arc<Cluster>>> = Mutex::new(None);
    let cluster = Arc::clone(KEPT.lock().get_or_insert_with(Cluster::shared));
    let scene = Elsewhere::start(library, "cluster", &cluster.url(), settings);
    (scene, cluster)
}

/// Connects to the cluster, with sharded channels if the server has them.
///
/// From 3.22 to 3.28 Redisson tests by a `SPUBLISH` to any master whether there are sharded
/// channels. Only the owner of slot 0 accepts that, so one client in three uses them. This function
/// connects until the peer does.
fn on_sharded(library: &'static Library) -> (Elsewhere, Arc<Cluster>) {
    const TRIES: usize = 40;
    for number in 1..=TRIES {
        let (scene, cluster) = on_cluster(library, "");
        if !has_sharded(&cluster) || is_sharded(&scene, &cluster, library.id) {
            say!(
                "{}: sharded channels after {number} connections",
                library.name
            );
            return (scene, cluster);
        }
        assert_eq!(
            library.id, WITH_LATCH.id,
            "newer ones ask what every master answers"
        );
    }
    panic!(
        "{}: no sharded channels in {TRIES} connections",
        library.name
    );
}

/// Whether the server has sharded channels. Without them, before Redis 7, both sides use plain
/// channels, without a setting.
fn has_sharded(cluster: &Cluster) -> bool {
    let mut probe = cluster.node(cluster.owner_of("lock")).probe();
    !matches!(probe.command(&["PUBSUB", "SHARDNUMSUB"]), Value::Error(_))
}

/// Whether the waiters of the peer subscribe to sharded channels.
fn is_sharded(scene: &Elsewhere, cluster: &Cluster, name: &str) -> bool {
    let guard = scene.ours.mutex(name).lock().unwrap();
    let mut probe = cluster.node(cluster.owner_of(name)).probe();
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let mut has = |kind| {
        !probe
            .command(&["PUBSUB", kind, &channel])
            .texts()
            .is_empty()
    };
    let is_sharded = eventually("a waiter of theirs subscribes", BOUND, || {
        let waiting = scene.peer.tell("waiter", &format!("try {name} 500 0"));
        let mut seen = None;
        while seen.is_none() && !waiting.is_there() {
            seen = match has("SHARDCHANNELS") {
                true => Some(true),
                false => has("CHANNELS").then_some(false),
            };
        }
        assert!(waiting.ok().starts_with("busy"));
        seen
    });
    guard.unlock().unwrap();
    is_sharded
}

fn cluster_locks_of_both_sides_exclude_each_other(library: &'static Library) {
    let (scene, _cluster) = match library.id {
        id if id == PLAIN.id => on_cluster(library, "channels=plain"),
        _ => on_sharded(library),
    };
    scene.add_up(&format!("cluster, {}", library.name), library.id);
}

/// Redisson uses sharded channels since 3.22; before 3.29 only one client in three does.
fn cluster_with_newer_redisson_shares_sharded_channels(library: &'static Library) {
    let (scene, cluster) = on_sharded(library);
    let owner = cluster.node(cluster.owner_of("lock"));
    owner.probe().reset_stats();
    scene.wake(&format!("cluster, {}", library.name));
    let mut probe = owner.probe();
    let has_any = has_sharded(&cluster);
    let [sharded, plain] = ["spublish", "publish"].map(|it| probe.command_calls(it) > 0);
    assert_eq!((sharded, plain), (has_any, !has_any));
}

fn cluster_with_older_redisson_shares_plain_channels_if_set(library: &'static Library) {
    let (scene, cluster) = on_cluster(library, "channels=plain");
    let owner = cluster.node(cluster.owner_of("lock"));
    owner.probe().reset_stats();
    scene.wake("cluster, 3.17 with channels=plain");
    let mut probe = owner.probe();
    assert!(probe.command_calls("publish") > 0 && probe.command_calls("spublish") == 0);
}

/// Where newer and older versions share locks, all must use the plain channels of the older ones.
fn cluster_with_newer_redisson_shares_plain_channels_if_set(library: &'static Library) {
    let (scene, cluster) = on_cluster(library, "channels=plain");
    let owner = cluster.node(cluster.owner_of("lock"));
    owner.probe().reset_stats();
    scene.wake("cluster, newest with sharded channels off");
    let mut probe = owner.probe();
    assert!(probe.command_calls("publish") > 0 && probe.command_calls("spublish") == 0);
}

/// On different kinds of channels neither side gets the other's messages. Each side finds the lock
/// free at the end of the lease that it saw, and ours within `poll=`, if that is set.
fn cluster_release_on_unshared_channel_is_found_by_polling(library: &'static Library) {
    const LEASE: (Duration, u64) = (Duration::from_secs(1), 700);
    const POLL: (Duration, u64) = (Duration::from_millis(100), 300);
    let until = |(time, slack)| Learns::Asks(time).within(slack);
    for (settings, bound) in [
        ("watchdog=1s&tracking=off", LEASE),
        ("watchdog=1s&tracking=off&format=redisson,poll=50ms", POLL),
    ] {
        retry_if_late(late::LEASE, || {
            let (scene, _cluster) = on_cluster(library, settings);
            let lock = scene.ours.mutex("apart");
            let how = Learns::Asks(bound.0);
            // The first change is not counted: our client connects during it, which takes half a
            // second on a busy machine.
            let took = (0..3)
                .map(|_| waking::to_us(&scene.peer, &lock, "apart", how))
                .skip(1);
            let worst = took.max().expect("some");
            say!("cluster, 3.17 and we on other channels, {settings}: at most {worst:?}");
            timely!(until(bound), worst <= until(bound), "{worst:?}");
            let took = (0..2).map(|_| waking::to_them(&scene.peer, &lock, "apart", Learns::Told));
            let took = took.max().expect("some");
            say!("cluster, 3.17 and we on other channels: they waited {took:?}");
            timely!(until(LEASE), took <= until(LEASE), "{took:?}");
        });
    }
}

fn on_sentinel(library: &'static Library, settings: &str) -> (Elsewhere, Group) {
    let group = Group::steady();
    let scene = Elsewhere::start(library, "sentinel", &group.url(), settings);
    (scene, group)
}

/// Redisson waits for replicas after each acquire and each release (since 3.12.5), and we wait for
/// one after each grant.
fn sentinel_locks_of_both_sides_wait_for_replicas(library: &'static Library) {
    let (scene, group) = on_sentinel(library, "replicas=1");
    scene.add_up("sentinel, newest, replicas=1", "lock");
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

/// No replica answers. Our client releases what no replica has confirmed, and reports that.
/// Redisson fails, too, but some of its calls leave the lock in the store. Our client waits for the
/// end of that lease, and the lock that it then takes stays ours.
fn sentinel_lock_left_by_failed_redisson_is_free_after_lease(library: &'static Library) {
    let is_fenced = library.arguments.contains(&"kind=fenced");
    let verb = if is_fenced { "fenced" } else { "lock" };
    let leaves_it = is_fenced || library.id == PLAIN.id;
    let (scene, group) = on_sentinel(library, "replicas=1");
    // Connects the peer and loads its scripts, because its next request must be answered within a
    // second.
    scene.peer.ask("t", "lock warm 0");
    scene.peer.ask("t", "unlock warm");
    group.servers[1..].iter().for_each(RedisServer::pause);
    let said = scene.peer.refusal("t", &format!("{verb} lock 0"));
    let is_left = group.probe().exists("lock");
    say!(
        "{} `{verb}` that no replica has, left in the store: {is_left}: {said}",
        library.name
    );
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
    let guard = lock.try_lock_for(BOUND).unwrap().expect("it is free");
    scene.peer.refusal("t", "unlock lock");
    // Over more than two of their renewals.
    must_stay_ours(&guard, Duration::from_millis(2_000));
    guard.unlock().unwrap();
}

/// When no replica answers any more, Redisson's renewal ends after its first hundred locks. The
/// other locks expire although Redisson believes that it holds them. Our client takes only locks
/// that have expired.
fn sentinel_lock_unrenewed_by_redisson_is_free_after_lease(library: &'static Library) {
    let (scene, group) = on_sentinel(library, "");
    let names: Vec<_> = (0..120).map(|number| format!("held-{number}")).collect();
    names
        .iter()
        .for_each(|name| drop(scene.peer.ask("t", &format!("lock {name} 0"))));
    group.servers[1..].iter().for_each(RedisServer::pause);
    let mut probe = group.probe();
    eventually("some lapse", BOUND, || {
        names.iter().any(|name| !probe.exists(name))
    });
    // All of them were renewed at the same time before, so the others expire now.
    let_pass(ms(500));
    group.servers[1..].iter().for_each(RedisServer::resume);
    let mut lapsed = 0;
    for name in &names {
        let Some(guard) = scene.ours.mutex(name).try_lock().unwrap() else {
            continue;
        };
        lapsed += 1;
        assert!(
            scene
                .peer
                .refusal("t", &format!("unlock {name}"))
                .contains(REFUSED)
        );
        guard.verify().unwrap();
        guard.unlock().unwrap();
    }
    say!(
        "{}: {lapsed} of {} lapsed while no replica answered",
        library.name,
        names.len()
    );
    assert!(
        (1..names.len()).contains(&lapsed),
        "docs/INTEROP.md says otherwise: {lapsed}"
    );
}

fn sentinel_lock_is_shared_with_the_oldest_redisson(library: &'static Library) {
    let (scene, _group) = on_sentinel(library, "");
    scene.add_up("sentinel, 3.12.0", "lock");
    scene.wake("sentinel, 3.12.0");
}
