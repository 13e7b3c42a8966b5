//! By what a client notices that another server is the master: by each of these alone.
//!
//! The sentinel here says what the test wants and when, and the old master does nothing to help:
//! where a real one becomes a replica, Redis closes all its connections, and any client would
//! notice.

use crate::fake_sentinel::Liar;
use crate::scene::{SOON, await_move, await_usable, connect, take};
use distlock::{Client, DistLock};
use distlock_tests::guards::await_renewals;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::is_master;
use distlock_tests::time::{Stopwatch, always, eventually, late, retry_if_late, within};
use std::thread;
use std::time::Duration;

/// How long the client waits for the sentinels when the master has answered, at least.
const GRACE: Duration = Duration::from_millis(100);

/// Two servers, a sentinel that names the first, and a client.
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
        let two = Self { old, new, liar, client };
        take(&two.client.mutex("first").unwrap()).unlock().unwrap();
        assert_eq!(two.connections(&two.new), 0);
        // Not before it listens: else it asks once more when it does.
        eventually("it listens", SOON, || two.liar.listeners() == 1);
        two.quiet();
        two
    }

    /// Waits until the client has nothing left to ask the sentinel for.
    fn quiet(&self) {
        // Whatever it was told so far is looked into four times within a second.
        always("no client goes elsewhere", Duration::from_millis(1_500), || {
            self.connections(&self.new) == 0
        });
    }

    fn connections(&self, server: &RedisServer) -> usize {
        let clients = server.probe().clients();
        clients.iter().filter(|client| client.contains("name=distlock")).count()
    }
}

/// One that sends a replica its data at once.
fn server() -> RedisServer {
    RedisServer::start_with(&["--repl-diskless-sync-delay", "0"])
}

fn follow(server: &RedisServer, master: Option<&RedisServer>) {
    let port = master.map(|master| master.port().to_string());
    let (host, port) = port.as_deref().map_or(("NO", "ONE"), |port| ("127.0.0.1", port));
    server.probe().command(&["REPLICAOF", host, port]);
    let Some(master) = master else { return };
    let mut probe = master.probe();
    eventually("it has everything", SOON, || {
        probe.command(&["SET", "sync", "1"]);
        probe.command(&["WAIT", "1", "100"]).int() == 1
    });
}

#[test]
fn a_sentinels_word_alone_moves_everything_though_the_old_master_is_well() {
    let two = Two::start("watchdog=60s");
    two.liar.name(two.new.port(), 2);
    two.liar.tell();
    eventually("no client is connected to the old one", SOON, || two.connections(&two.old) == 0);
    let guard = take(&two.client.mutex("moved").unwrap());
    assert!(two.new.probe().exists("moved") && is_master(&two.old));
    guard.unlock().unwrap();
}

#[test]
fn who_looks_is_told_by_the_new_master_though_nobody_has_told_of_it() {
    retry_if_late(|| {
        let two = Two::start("watchdog=60s");
        let lock = two.client.mutex("held").unwrap();
        let guard = take(&lock);
        guard.verify().unwrap();
        two.liar.name(two.new.port(), 2);
        assert!(guard.is_valid() && two.old.probe().exists("held") && is_master(&two.old));
        if lock.is_locked().unwrap() {
            late(GRACE, "the sentinel did not answer while the old master did");
        }
        assert!(guard.verify().unwrap_err().is_lost() && !guard.is_valid());
    });
}

/// The old master answers every script with this error, on connections that stand: by hand, they
/// stay. The sentinel names the new one, without a message: the attempt that meets the error asks
/// it, and goes on.
fn must_be_left_at_once(two: &Two, code: &str) {
    // So that it need not be left alone for a while.
    two.quiet();
    let says_so = || {
        let answer = two.old.probe().command(&["EVAL", "return redis.call('SET', 'x', 'x')", "0"]);
        matches!(&answer, Value::Error(error) if error.starts_with(code))
    };
    eventually("it says so", SOON, says_so);
    assert!(two.connections(&two.old) > 0);
    two.liar.name(two.new.port(), 2);
    let guard = two.client.mutex("moved").unwrap().try_lock().unwrap().expect("it is free");
    assert!(says_so(), "nothing else can have told");
    assert!(two.new.probe().exists("moved"));
    guard.unlock().unwrap();
}

#[test]
fn a_master_that_says_readonly_on_a_connection_that_stands_is_left_at_once() {
    let two = Two::start("");
    follow(&two.old, Some(&two.new));
    must_be_left_at_once(&two, "READONLY");
}

#[test]
fn so_is_one_that_says_masterdown() {
    let two = Two::start("");
    let mut old = two.old.probe();
    old.command(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    // Port 1 refuses connections.
    old.command(&["REPLICAOF", "127.0.0.1", "1"]);
    must_be_left_at_once(&two, "MASTERDOWN");
}

#[test]
fn so_is_one_that_says_loading() {
    let two = Two::start("");
    two.new.fill();
    let mut old = two.old.probe();
    old.command(&["CONFIG", "SET", "key-load-delay", "20000"]);
    // Older ones answer all the same, after every 2 MiB.
    let _older = old.command(&["CONFIG", "SET", "loading-process-events-interval-bytes", "65536"]);
    old.command(&["REPLICAOF", "127.0.0.1", &two.new.port().to_string()]);
    must_be_left_at_once(&two, "LOADING");
    // It would go on reading for as long as it is to be asked what it has refused.
    two.old.probe().command(&["CONFIG", "SET", "key-load-delay", "0"]);
}

#[test]
fn a_master_that_cannot_be_reached_is_left_at_once() {
    let mut two = Two::start("");
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    let lock = two.client.mutex("moved").unwrap();
    within(Duration::from_secs(3), || take(&lock)).unlock().unwrap();
}

/// A host that is gone takes all the time of a client that connects to it: there is none left to
/// ask the sentinels in.
#[test]
fn also_where_connecting_takes_all_the_time_there_is() {
    let two = Two::start("command_timeout=1200ms&connect_timeout=1200ms");
    two.old.probe().command(&["CLIENT", "KILL", "TYPE", "normal"]);
    two.old.pause();
    two.liar.name(two.new.port(), 2);
    let lock = two.client.mutex("moved").unwrap();
    within(Duration::from_secs(5), || await_usable(&lock));
    two.old.resume();
}

/// By a holder that does not let go of it.
fn hold(server: &RedisServer, name: &str) {
    let mut probe = server.probe();
    probe.command(&["HSET", name, "other:1", "1"]);
    probe.command(&["PEXPIRE", name, "60000"]);
}

fn is_watched(server: &RedisServer, name: &str) -> bool {
    let channels = server.probe().command(&["PUBSUB", "CHANNELS", "redisson*"]).texts();
    channels.iter().any(|channel| channel.contains(name))
}

#[test]
fn whoever_waits_is_moved_when_the_connection_that_hears_of_releases_breaks() {
    let mut two = Two::start("watchdog=60s");
    hold(&two.old, "held");
    let lock = two.client.mutex("held").unwrap();
    let waiting = thread::spawn(move || take(&lock).unlock().unwrap());
    eventually("it waits", SOON, || is_watched(&two.old, "held"));
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    // Long before a lease or a wait is over.
    within(Duration::from_secs(20), || waiting.join().unwrap());
}

#[test]
fn whoever_waits_is_moved_and_looks_again_though_the_old_master_is_well() {
    let two = Two::start("watchdog=60s");
    // Both are held on the old one.
    hold(&two.old, "free");
    hold(&two.old, "held");
    hold(&two.new, "held");
    let waits = |name: &'static str| {
        let lock = two.client.mutex(name).unwrap();
        thread::spawn(move || take(&lock).unlock().unwrap())
    };
    let [free, held] = ["free", "held"].map(waits);
    eventually("they wait", SOON, || is_watched(&two.old, "free") && is_watched(&two.old, "held"));
    two.liar.name(two.new.port(), 2);
    two.liar.tell();
    let start = Stopwatch::start();
    eventually("it finds the lock free", SOON, || free.is_finished());
    eventually("the other one listens there", SOON, || is_watched(&two.new, "held"));
    let mut probe = two.new.probe();
    probe.command(&["DEL", "held"]);
    probe.command(&["PUBLISH", "redisson_lock__channel:{held}", "0"]);
    eventually("it hears of the release", SOON, || held.is_finished());
    // Long before a lease or a wait is over.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    free.join().unwrap();
    held.join().unwrap();
}

#[test]
fn a_renewal_that_fails_finds_the_new_master_by_itself() {
    let mut two = Two::start("watchdog=6s");
    follow(&two.new, Some(&two.old));
    let guard = take(&two.client.mutex("held").unwrap());
    eventually("the replica has it", SOON, || two.new.probe().exists("held"));
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    follow(&two.new, None);
    await_renewals(&guard);
    assert!(two.new.probe().exists("held"));
    guard.unlock().unwrap();
}

#[test]
fn a_release_that_nobody_waits_for_and_that_fails_is_made_up_for_on_the_new_master() {
    let mut two = Two::start("watchdog=60s");
    follow(&two.new, Some(&two.old));
    let guard = take(&two.client.mutex("dropped").unwrap());
    eventually("the replica has it", SOON, || two.new.probe().exists("dropped"));
    two.liar.name(two.new.port(), 2);
    two.old.kill();
    follow(&two.new, None);
    drop(guard);
    eventually("it is free", SOON, || !two.new.probe().exists("dropped"));
}

/// The replica was promoted before the old master freed them, and no message had said so yet.
#[test]
fn what_the_old_master_freed_and_the_new_one_does_not_know_of_is_freed_there_too() {
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
    eventually("the old one has freed them", SOON, || held(&two.old) == [false, false, true]);
    assert_eq!(held(&two.new), [true; 3]);
    two.liar.name(two.new.port(), 2);
    two.liar.tell();
    eventually("the new one has, too", SOON, || held(&two.new) == [false, false, true]);
    kept.verify().unwrap();
    kept.unlock().unwrap();
}

/// Where nothing says whose a lock is, giving it back once more would free another's.
#[test]
fn what_has_no_owner_is_not_freed_once_more_on_the_new_master() {
    let two = Two::start("format=plain&lease=60s");
    follow(&two.new, Some(&two.old));
    let guard = take(&two.client.mutex("unlocked").unwrap());
    eventually("the replica has it", SOON, || two.new.probe().exists("unlocked"));
    follow(&two.new, None);
    guard.unlock().unwrap();
    two.new.probe().command(&["SET", "unlocked", "another's", "EX", "60"]);
    two.liar.name(two.new.port(), 2);
    two.liar.tell();
    await_move(&two.client.mutex("moved").unwrap(), &two.new);
    let stays = || two.new.probe().get("unlocked").as_deref() == Some("another's");
    always("it is another's", Duration::from_millis(500), stays);
}

#[test]
fn what_is_given_back_while_the_master_changes_is_given_back_once() {
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
fn a_master_that_was_made_a_replica_by_hand_makes_nobody_lose_a_lock() {
    let two = Two::start("watchdog=9s");
    let renewed = two.old.probe().command_calls("hexists");
    let guard = take(&two.client.mutex("held").unwrap());
    let losses = guard.losses();
    // So that there is a connection for renewals.
    eventually("it is renewed", SOON, || two.old.probe().command_calls("hexists") > renewed);
    // The new master has the lock, and the old one, whose connections stand, follows it and has
    // nothing: as if the two had not met yet.
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
