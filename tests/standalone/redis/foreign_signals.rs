//! `wakes=`: the signals that wake waiters of other libraries, received here by raw connections.
//! Tests with the libraries themselves are in `tests/interop`.

use distlock::{Client, LockGuard, Mutex};
use distlock_tests::cluster::Cluster;
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::redis::client;
use distlock_tests::resp::Kind;
use distlock_tests::sentinel::{Group, await_move};
use distlock_tests::time::{eventually, within};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const PYTHON: &str = "prefix=lock:&format=token,wakes=python-redis-lock";
const SPRING: &str = "prefix=registry:&format=token,wakes=spring-integration";

const LONG: Duration = Duration::from_secs(60);

/// A way to free a held lock.
type Frees = fn(&Mutex, LockGuard);

/// Every way to free a lock, with its name.
const WAYS: [(&str, Frees); 3] = [
    ("unlock", |_, guard| guard.unlock().unwrap()),
    ("drop", |_, guard| drop(guard)),
    ("force", |lock, _guard| {
        assert!(lock.force_unlock().unwrap());
    }),
];

/// Asserts that `free` wakes a waiter that blocks on the signal list, as python-redis-lock does.
fn wakes_a_sleeper(way: &str, connect: impl Fn() -> Probe, list: &str, free: impl FnOnce()) {
    let (mut sleeper, mut eyes) = (connect(), connect());
    thread::scope(|scope| {
        let woken = scope.spawn(move || sleeper.command(&["BLPOP", list, "15"]));
        let is_asleep =
            |client: &String| client.contains("cmd=blpop") && client.contains("flags=b");
        eventually("it sleeps", LONG, || eyes.clients().iter().any(is_asleep));
        free();
        let told = woken.join().unwrap();
        assert_eq!(
            told,
            Value::List([list, "1"].map(|it| Value::Text(it.to_owned())).into()),
            "{way}"
        );
    });
}

/// Asserts that `free` publishes what Spring's registry expects, to a subscriber on this
/// connection.
fn tells_a_listener(way: &str, mut listener: Probe, name: &str, free: impl FnOnce()) {
    let (key, channel) = (
        format!("registry:{name}"),
        format!("registry-channel:registry:{name}"),
    );
    listener.command(&["SUBSCRIBE", &channel]);
    free();
    assert_eq!(
        listener.read_value().unwrap().texts(),
        ["message", &channel, &key],
        "{way}"
    );
}

/// Returns clients with these options: by their URL, by their URL without tokens, and made from
/// another client by `with_option`.
fn with(server: &RedisServer, options: &str) -> [Client; 3] {
    let (others, format) = options.split_once("format=").expect("it stands last");
    [
        client(server, options),
        client(server, &format!("{options}&tokens=off")),
        client(server, others)
            .with_option("format", format)
            .unwrap(),
    ]
}

#[test]
fn every_release_path_signals_python_redis_lock() {
    let server = RedisServer::start();
    for client in with(&server, PYTHON) {
        let lock = client.mutex("x").unwrap();
        for (way, free) in WAYS {
            let guard = lock.lock().unwrap();
            wakes_a_sleeper(
                way,
                || server.probe(),
                "lock-signal:x",
                || free(&lock, guard),
            );
        }
    }
    wakes_a_sleeper(
        "close",
        || server.probe(),
        "lock-signal:x",
        || close(&server, PYTHON),
    );
}

#[test]
fn every_release_path_publishes_on_the_spring_channel() {
    let server = RedisServer::start();
    for client in with(&server, SPRING) {
        let lock = client.mutex("x").unwrap();
        for (way, free) in WAYS {
            let guard = lock.lock().unwrap();
            tells_a_listener(way, server.probe(), "x", || free(&lock, guard));
        }
    }
    tells_a_listener("close", server.probe(), "x", || close(&server, SPRING));
}

/// Releases a lock whose attempt was sent twice, because the first reply was lost: such a release
/// leaves a tombstone.
fn close(server: &RedisServer, options: &str) {
    let plan = Sometimes::new(Some(Kind::Acquire), Turn::Only(1), Fault::CutReply);
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    let client = distlock::connect(&format!("{}?{options}", proxy.url())).unwrap();
    client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    assert!(
        proxy.count(Kind::Close, Fault::Pass) > 0,
        "{}",
        proxy.account()
    );
}

/// A full server refuses `LPUSH` as the first write of a script. The release writes something else
/// first, so it signals and frees the lock.
#[test]
fn full_server_signals_as_well() {
    let server = RedisServer::start();
    let lock = client(&server, PYTHON).mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    server.probe().command(&["CONFIG", "SET", "maxmemory", "1"]);
    wakes_a_sleeper(
        "full",
        || server.probe(),
        "lock-signal:x",
        || guard.unlock().unwrap(),
    );
}

/// As with python-redis-lock, a signal that no waiter takes lasts for a second and is never
/// doubled: a waiter that comes meanwhile attempts once in vain.
#[test]
fn untaken_signal_stays_single_for_a_second() {
    let server = RedisServer::start();
    let (lock, mut probe) = (client(&server, PYTHON).mutex("x").unwrap(), server.probe());
    for _ in 0..3 {
        lock.lock().unwrap().unlock().unwrap();
        assert_eq!(
            probe
                .command(&["LRANGE", "lock-signal:x", "0", "-1"])
                .texts(),
            ["1"]
        );
        assert!(probe.pttl("lock-signal:x").expect("it has an end") <= Duration::from_secs(1));
    }
    // As with python-redis-lock, the release of a lost lock sends no signal.
    let guard = lock.lock().unwrap();
    probe.command(&["DEL", "lock:x", "lock-signal:x"]);
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(!lock.force_unlock().unwrap());
    assert!(!probe.exists("lock-signal:x"));
}

/// The registry's value is no `UUID:number`, so the waiter would poll, here once an hour. The
/// registry's message, or the server's report of the change, wakes it earlier.
#[test]
fn release_by_a_spring_registry_wakes_our_waiter_at_once() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(
        &server,
        "prefix=registry:&format=token,wakes=spring-integration,poll=1h",
    );
    probe.command(&[
        "SET",
        "registry:x",
        "7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1",
        "PX",
        "600000",
    ]);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let lock = client.mutex("x").unwrap();
            within(LONG, || lock.lock().unwrap().unlock().unwrap());
        });
        let listens = |probe: &mut Probe| {
            let told = probe.command(&["PUBSUB", "NUMSUB", "registry-channel:registry:x"]);
            format!("{told:?}").contains("Int(1)")
        };
        eventually("it listens", LONG, || listens(&mut probe));
        probe.command(&["DEL", "registry:x"]);
        // Repeated, because the waiter may not sleep yet: it attempts once more after its
        // subscription.
        eventually("it is woken", LONG, || {
            probe.command(&["PUBLISH", "registry-channel:registry:x", "registry:x"]);
            waits.is_finished()
        });
    });
}

/// Returns all keys of the server with their contents.
fn everything(probe: &mut Probe) -> Vec<(String, Value)> {
    let mut keys = probe.keys("*");
    keys.sort();
    keys.into_iter()
        .map(|key| (key.clone(), probe.command(&["DUMP", &key])))
        .collect()
}

/// Returns the text of an error and of its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let behind = error.source().map(chain).unwrap_or_default();
    format!("{error}: {behind}")
}

/// Asserts that `force_unlock` and `unlock` both fail with this cause, and write nothing.
fn is_refused(probe: &mut Probe, (lock, guard): (&Mutex, LockGuard), says: &str) {
    let before = everything(probe);
    let forced = lock.force_unlock().unwrap_err();
    assert!(
        forced.is_configuration() && chain(&forced).contains(says),
        "{}",
        chain(&forced)
    );
    assert_eq!(everything(probe), before, "nothing was written");
    guard.verify().unwrap();
    let error = guard.unlock().unwrap_err();
    assert!(
        !error.is_lost() && chain(&error).contains(says),
        "{}",
        chain(&error)
    );
    assert_eq!(everything(probe), before, "nothing was written");
}

#[test]
fn foreign_value_under_signal_list_is_named_lock_is_kept() {
    let server = RedisServer::start();
    let (lock, mut probe) = (client(&server, PYTHON).mutex("x").unwrap(), server.probe());
    let guard = lock.lock().unwrap();
    probe.command(&["SET", "lock-signal:x", "text"]);
    let says = "the list of signals is a string under the key \"lock-signal:x\"";
    is_refused(&mut probe, (&lock, guard), says);
    probe.command(&["DEL", "lock-signal:x"]);
    // Finds the lock free if the cleanup after the failed unlock was faster.
    lock.force_unlock().unwrap();
    assert!(!probe.exists("lock:x") && probe.exists("lock-signal:x"));
}

/// Connects as a user with these rights.
fn as_user(server: &RedisServer, rules: &[&str], options: &str) -> Client {
    let words = ["ACL", "SETUSER", "less", "reset", "on", ">pw", "+@all"];
    server.probe().command(&[&words[..], rules].concat());
    distlock::connect(&format!("{}?{options}", server.url_as("less:pw"))).unwrap()
}

#[test]
fn missing_right_to_signal_is_named_and_the_lock_is_kept() {
    let keys = [
        "~lock:*",
        "~redisson_lock_token:*",
        "~distlock_closed:*",
        "&*",
    ];
    for (options, rules, says) in [
        (PYTHON, &keys[..], "~lock-signal:*`"),
        (PYTHON, &["~*", "&*", "-lpush"], "+lpush`"),
    ] {
        let server = RedisServer::start();
        let lock = as_user(&server, rules, options).mutex("x").unwrap();
        let guard = lock.lock().unwrap();
        is_refused(&mut server.probe(), (&lock, guard), says);
    }
}

#[test]
fn signal_list_must_be_in_the_slot_of_the_lock() {
    let cluster = Cluster::shared();
    let client = distlock::connect(&format!("{}?{PYTHON}", cluster.url())).unwrap();
    let lock = client.mutex("wakes-without-a-tag").unwrap();
    for error in [
        lock.try_lock().unwrap_err(),
        lock.lock().unwrap_err(),
        lock.force_unlock().unwrap_err(),
    ] {
        let said = error.to_string();
        assert!(error.is_configuration(), "{error:?}");
        assert!(said.contains("lock-signal:wakes-without-a-tag"), "{said}");
        assert!(said.contains("give the name a hash tag"), "{said}");
    }
    let key = "lock:wakes-without-a-tag";
    assert!(!cluster.probe(key).exists(key));

    let (key, list) = ("lock:{wakes}:tagged", "lock-signal:{wakes}:tagged");
    let lock = client.mutex("{wakes}:tagged").unwrap();
    for (way, free) in WAYS {
        let guard = lock.lock().unwrap();
        wakes_a_sleeper(way, || cluster.probe(key), list, || free(&lock, guard));
    }
}

/// Spring's listener may be connected to any node, and subscribes to no sharded channels.
#[test]
fn spring_channel_is_a_plain_channel_on_a_cluster() {
    let cluster = Cluster::shared();
    let client = distlock::connect(&format!("{}?{SPRING}", cluster.url())).unwrap();
    let lock = client.mutex("wakes-spring").unwrap();
    for (node, (way, free)) in WAYS.into_iter().enumerate() {
        let guard = lock.lock().unwrap();
        tells_a_listener(way, cluster.node(node).probe(), "wakes-spring", || {
            free(&lock, guard);
        });
    }
    let sharded = format!("{}?channels=sharded&{SPRING}", cluster.url());
    assert!(distlock::connect(&sharded).unwrap_err().is_configuration());
}

/// Signals reach the waiters before a failover and after it.
#[test]
fn signals_follow_the_master_behind_sentinels() {
    let group = Group::start();
    let clients = [PYTHON, SPRING]
        .map(|options| distlock::connect(&format!("{}?{options}", group.url())).unwrap());
    let [python, spring] = clients.each_ref().map(|client| client.mutex("x").unwrap());
    for is_other in [false, true] {
        if is_other {
            let old = group.fail_over();
            let new = &group.servers[group.await_other_than(old)];
            // Before its move, a client may signal on the old master, and waiters on the new one
            // receive nothing. Another lock shows the move, because a signal stays in the list for
            // a second.
            for (client, key) in clients.iter().zip(["lock:y", "registry:y"]) {
                await_move(&client.mutex("y").unwrap(), key, new);
            }
        }
        for (way, free) in WAYS {
            // Waits, because the lock may be held for a moment after a failover.
            let taken = |lock: &Mutex| lock.try_lock_for(LONG).unwrap().expect("it is free");
            let guard = taken(&python);
            wakes_a_sleeper(
                way,
                || group.probe(),
                "lock-signal:x",
                || free(&python, guard),
            );
            let guard = taken(&spring);
            tells_a_listener(way, group.probe(), "x", || free(&spring, guard));
        }
    }
}
