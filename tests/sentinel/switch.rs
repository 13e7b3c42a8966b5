//! The signs by which a client notices a new master, each one without the others.
//!
//! The sentinel is fake, and the old master gives only the sign that the test is about. A real
//! master that becomes a replica closes all its connections, which any client would notice.

use crate::fake_sentinel::Liar;
use crate::scene::{SOON, await_move, await_usable, connect, take};
use distlock::Client;
use distlock_tests::guards::await_renewals;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::is_master;
use distlock_tests::time::{Stopwatch, always, eventually, late, retry_if_late, within};
use std::thread;
use std::time::Duration;

/// The shortest time for which the client waits for the sentinels when the master has answered.
/// If the sentinel answers later, the machine was late, and the test is repeated.
const GRACE: Duration = Duration::from_millis(100);

/// Two servers, a fake sentinel that names the first one, and a client.
struct Two {
    old: RedisServer,
    new: RedisServer,
    liar: Liar,
    client: Client,
}

impl Two {
    fn start(options: &str) -> Self {
        let [old, new] = [(); 2].map(|()| server());
        let liar = Liar::naming(old.port(), 1);
        let client = connect(&format!("{}?{options}", liar.url()));
        let two = Self {
            old,
            new,
            liar,
            client,
        };
        take(&two.client.mutex("first").unwrap()).unlock().unwrap();
        assert_eq!(two.connections(&two.new), 0);
        // The client queries the sentinel again when its subscription begins.
        eventually("it listens", SOON, || two.liar.listeners() == 1);
        two.quiet();
        two
    }

    /// Waits until the client sends no more queries to the sentinel.
    fn quiet(&self) {
        // After a message or a new subscription, the client queries the sentinels four times within
        // a second.
        always(
            "no client uses the new server",
            Duration::from_millis(1_500),
            || self.connections(&self.new) == 0,
        );
    }

    fn connections(&self, server: &RedisServer) -> usize {
        let clients = server.probe().clients();
        clients
            .iter()
            .filter(|client| client.contains("name=distlock"))
            .count()
    }
}

/// Starts a server that sends its data to a new replica at once.
fn server() -> RedisServer {
    RedisServer::start_with(&["--repl-diskless-sync-delay", "0"])
}

/// Makes `server` a replica of `master`, or a master if there is none.
pub(crate) fn follow(server: &RedisServer, master: Option<&RedisServer>) {
    let port = master.map(|master| master.port().to_string());
    let (host, port) = port
        .as_deref()
        .map_or(("NO", "ONE"), |port| ("127.0.0.1", port));
    server.probe().command(&["REPLICAOF", host, port]);
    let Some(master) = master else { return };
    let mut probe = master.probe();
    eventually("the replica has all data", SOON, || {
        probe.command(&["SET", "sync", "1"]);
        probe.command(&["WAIT", "1", "100"]).int() == 1
    });
}

#[test]
fn switch_message_moves_client_off_a_healthy_master() {
    let two = Two::start("watchdog=60s");
    two.liar.name(two.new.port(), 2);
    two.liar.tell();
    eventually("no client is connected to the old one", SOON, || {
        two.connections(&two.old) == 0
    });
    let guard = take(&two.client.mutex("moved").unwrap());
    assert!(two.new.probe().exists("moved") && is_master(&two.old));
    guard.unlock().unwrap();
}

#[test]
fn lock_inspection_asks_new_master_without_switch_message() {
    retry_if_late(|| {
        let two = Two::start("watchdog=60s");
        let lock = two.client.mutex("held").unwrap();
        let guard = take(&lock);
        guard.verify().unwrap();
        two.liar.name(two.new.port(), 2);
        assert!(guard.is_valid() && two.old.probe().exists("held") && is_master(&two.old));
        if lock.is_locked().unwrap() {
            late(
                GRACE,
                "the sentinel did not answer while the old master did",
            );
        }
        assert!(guard.verify().unwrap_err().is_lost() && !guard.is_valid());
    });
}

/// Checks that one attempt succeeds on the new master although the old master, on open connections,
/// answers every script with this error. The sentinel sends no message, so the attempt must query
/// it.
fn must_move_client_at_once(two: &Two, code: &str) {
    // Until the pause between two queries to the sentinel is over: otherwise the attempt would not
    // query it.
    two.quiet();
    let says_so = || {
        let answer = two
            .old
            .probe()
            .command(&["EVAL", "return redis.call('SET', 'x', 'x')", "0"]);
        matches!(&answer, Value::Error(error) if error.contains(code))
    };
    eventually("it answers so", SOON, says_so);
    assert!(two.connections(&two.old) > 0);
    two.liar.name(two.new.port(), 2);
    let guard = two
        .client
        .mutex("moved")
        .unwrap()
        .try_lock()
        .unwrap()
        .expect("it is free");
    assert!(says_so(), "the error was the only sign");
    assert!(two.new.probe().exists("moved"));
    guard.unlock().unwrap();
}

#[test]
fn readonly_error_on_open_connection_moves_client_at_once() {
    let two = Two::start("");
    follow(&two.old, Some(&two.new));
    must_move_client_at_once(&two, "READONLY");
}

#[test]
fn masterdown_error_on_open_connection_moves_client_at_once() {
    let two = Two::start("");
    let mut old = two.old.probe();
    old.command(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    // Port 1 refuses connections.
    old.command(&["REPLICAOF", "127.0.0.1", "1"]);
    must_move_client_at_once(&two, "MASTERDOWN");
}

#[test]
fn loading_error_on_open_connection_moves_client_at_once() {
    let two = Two::start("");
    two.new.fill();
    let mut old = two.old.probe();
    old.command(&["CONFIG", "SET", "key-load-delay", "20000"]);
    // Redis before 7 lacks this setting, and answers requests after every 2 MiB that it loads.
    let _older = old.command(&[
        "CONFIG",
        "SET",
        "loading-process-events-interval-bytes",
        "65536",
    ]);
    old.command(&["REPLICAOF", "127.0.0.1", &two.new.port().to_string()]);
    must_move_client_at_once(&two, "LOADING");
    // Otherwise the server would still be loading when the end of the test reads its ACL log.
    two.old
        .probe()
        .command(&["CONFIG", "SET", "key-load-delay", "0"]);
}

#[test]
fn unreachable_master_is_left_at_once() {
    let mut two = Two::start("");
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    let lock = two.client.mutex("moved").unwrap();
    within(Duration::from_secs(3), || take(&lock))
        .unlock()
        .unwrap();
}

/// Connecting to a host that is gone takes the whole time-out of a call, so that this call has no
/// time left to query the sentinels.
#[test]
fn connect_timeout_at_a_paused_master_moves_the_client() {
    let two = Two::start("command_timeout=1200ms&connect_timeout=1200ms");
    two.old
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "normal"]);
    two.old.pause();
    two.liar.name(two.new.port(), 2);
    let lock = two.client.mutex("moved").unwrap();
    within(Duration::from_secs(5), || await_usable(&lock));
    two.old.resume();
}

/// Writes the lock as held by another client, which never releases it.
fn hold(server: &RedisServer, name: &str) {
    let mut probe = server.probe();
    probe.command(&["HSET", name, "other:1", "1"]);
    probe.command(&["PEXPIRE", name, "60000"]);
}

fn is_watched(server: &RedisServer, name: &str) -> bool {
    let channels = server
        .probe()
        .command(&["PUBSUB", "CHANNELS", "distlock_queue*"])
        .texts();
    channels.iter().any(|channel| channel.contains(name))
}

#[test]
fn waiter_moves_when_its_subscription_connection_breaks() {
    let mut two = Two::start("watchdog=60s");
    hold(&two.old, "held");
    let lock = two.client.mutex("held").unwrap();
    let waiting = thread::spawn(move || take(&lock).unlock().unwrap());
    eventually("it waits", SOON, || is_watched(&two.old, "held"));
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    // Long before the lease or the wait ends.
    within(Duration::from_secs(20), || waiting.join().unwrap());
}

#[test]
fn switch_message_moves_waiters_off_a_healthy_master() {
    let two = Two::start("watchdog=60s");
    // Both locks are held on the old master, and one of them also on the new master.
    hold(&two.old, "free");
    hold(&two.old, "held");
    hold(&two.new, "held");
    let waits = |name: &'static str| {
        let lock = two.client.mutex(name).unwrap();
        thread::spawn(move || take(&lock).unlock().unwrap())
    };
    let [free, held] = ["free", "held"].map(waits);
    eventually("they wait", SOON, || {
        is_watched(&two.old, "free") && is_watched(&two.old, "held")
    });
    two.liar.name(two.new.port(), 2);
    two.liar.tell();
    let start = Stopwatch::start();
    eventually("one waiter finds its lock free", SOON, || {
        free.is_finished()
    });
    eventually("the other waiter subscribes there", SOON, || {
        is_watched(&two.new, "held")
    });
    let mut probe = two.new.probe();
    probe.command(&["DEL", "held"]);
    let inboxes = probe.command(&["PUBSUB", "CHANNELS", "distlock_queue:2:{held}:*"]);
    probe.command(&["PUBLISH", &inboxes.texts()[0], "0"]);
    eventually("the other waiter is woken", SOON, || held.is_finished());
    // Long before the lease or the wait ends.
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    free.join().unwrap();
    held.join().unwrap();
}

#[test]
fn failed_renewal_finds_the_new_master() {
    let mut two = Two::start("watchdog=6s");
    follow(&two.new, Some(&two.old));
    let guard = take(&two.client.mutex("held").unwrap());
    eventually("the replica has it", SOON, || {
        two.new.probe().exists("held")
    });
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    follow(&two.new, None);
    await_renewals(&guard);
    assert!(two.new.probe().exists("held"));
    guard.unlock().unwrap();
}

#[test]
fn failed_async_release_is_repeated_on_the_new_master() {
    let mut two = Two::start("watchdog=60s");
    follow(&two.new, Some(&two.old));
    let guard = take(&two.client.mutex("dropped").unwrap());
    eventually("the replica has it", SOON, || {
        two.new.probe().exists("dropped")
    });
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    follow(&two.new, None);
    drop(guard);
    eventually("it is free", SOON, || !two.new.probe().exists("dropped"));
}

/// If the old master frees locks after the promotion of its replica, and before the client knows of
/// it, the client repeats the releases on the new master. Otherwise the locks would stay held there
/// until their leases end.
#[test]
fn release_unknown_to_the_new_master_is_repeated_there() {
    let two = Two::start("watchdog=60s");
    follow(&two.new, Some(&two.old));
    let [unlocked, dropped, kept] =
        ["unlocked", "dropped", "kept"].map(|name| take(&two.client.mutex(name).unwrap()));
    let held = |server: &RedisServer| {
        ["unlocked", "dropped", "kept"].map(|name| server.probe().exists(name))
    };
    eventually("the replica has them", SOON, || held(&two.new) == [true; 3]);
    follow(&two.new, None);
    unlocked.unlock().unwrap();
    drop(dropped);
    eventually("the old master has freed them", SOON, || {
        held(&two.old) == [false, false, true]
    });
    assert_eq!(held(&two.new), [true; 3]);
    two.liar.name(two.new.port(), 2);
    two.liar.tell();
    eventually("the new master has, too", SOON, || {
        held(&two.new) == [false, false, true]
    });
    kept.verify().unwrap();
    kept.unlock().unwrap();
}

/// If the value names no owner, a repeated release would free another client's lock, so the client
/// does not repeat it.
#[test]
fn release_without_owner_is_not_repeated_after_a_switch() {
    let two = Two::start("format=plain&lease=60s");
    follow(&two.new, Some(&two.old));
    let guard = take(&two.client.mutex("unlocked").unwrap());
    eventually("the replica has it", SOON, || {
        two.new.probe().exists("unlocked")
    });
    follow(&two.new, None);
    guard.unlock().unwrap();
    two.new
        .probe()
        .command(&["SET", "unlocked", "another's", "EX", "60"]);
    two.liar.name(two.new.port(), 2);
    two.liar.tell();
    await_move(&two.client.mutex("moved").unwrap(), &two.new);
    let stays = || two.new.probe().get("unlocked").as_deref() == Some("another's");
    always(
        "the other client's lock stays",
        Duration::from_millis(500),
        stays,
    );
}

#[test]
fn releases_during_a_switch_succeed_on_the_new_master() {
    let mut two = Two::start("watchdog=60s");
    follow(&two.new, Some(&two.old));
    let client = &two.client;
    let names: Vec<_> = (0..32).map(|number| format!("held{number}")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| client.owned_mutex(name.as_str()).unwrap().lock().unwrap())
        .collect();
    eventually("the replica has them", SOON, || {
        names.iter().all(|name| two.new.probe().exists(name))
    });
    follow(&two.new, None);
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    thread::scope(|scope| {
        for guard in guards {
            scope.spawn(move || guard.unlock().unwrap());
        }
    });
    assert!(names.iter().all(|name| !two.new.probe().exists(name)));
}

#[test]
fn master_demoted_by_hand_loses_no_held_lock() {
    let two = Two::start("watchdog=9s");
    let renewed = two.old.probe().command_calls("hexists");
    let guard = take(&two.client.mutex("held").unwrap());
    let losses = guard.losses();
    // Wait for a renewal, so that the client has its connection for renewals.
    eventually("it is renewed", SOON, || {
        two.old.probe().command_calls("hexists") > renewed
    });
    // The test writes the lock to the new master. The old master keeps its connections, but is now
    // a replica without data, as before its first synchronisation.
    let owner = two.old.probe().hgetall("held").into_keys().next().unwrap();
    let third = server();
    follow(&two.old, Some(&third));
    assert!(!two.old.probe().exists("held"));
    let mut probe = two.new.probe();
    probe.command(&["HSET", "held", &owner, "1"]);
    probe.command(&["PEXPIRE", "held", "9000"]);
    let renewed = probe.command_calls("pexpire");
    two.liar.name(two.new.port(), 2);
    eventually("it is renewed on the new master", SOON, || {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        probe.command_calls("pexpire") > renewed
    });
    await_renewals(&guard);
    assert!(losses.try_recv().is_err());
    guard.unlock().unwrap();
    assert!(!probe.exists("held"));
}
