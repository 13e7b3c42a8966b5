//! The life of a lock, whatever the bytes travel over: taken, waited for, renewed, released.

use crate::bench::LONG;
use distlock::{Clock, DistLock, SystemClock};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, let_pass};
use std::thread;
use std::time::Duration;

/// What a lock goes through on this server when it is reached by `url`, which has options already.
pub(crate) fn of_a_lock(server: &RedisServer, url: &str) {
    is_handed_over(server, url);
    is_kept(server, url);
}

/// Two clients hand a lock to each other: the one that waits is woken by the message, long before the lease is over.
fn is_handed_over(server: &RedisServer, url: &str) {
    let (ours, theirs) = (distlock::connect(url).unwrap(), distlock::connect(url).unwrap());
    let (mutex, rival) = (ours.mutex("a").unwrap(), theirs.mutex("a").unwrap());
    let guard = mutex.lock().unwrap();
    let token = guard.fencing_token().unwrap();
    assert!(server.probe().exists("a"));
    assert!(rival.try_lock().unwrap().is_none(), "busy");
    let waiting = thread::spawn(move || {
        let guard = rival.lock().unwrap();
        let (token, got) = (guard.fencing_token().unwrap(), SystemClock.now());
        guard.unlock().unwrap();
        (token, got)
    });
    let mut probe = server.probe();
    eventually("the rival listens", LONG, || {
        !probe.command(&["PUBSUB", "CHANNELS", "*{a}"]).texts().is_empty()
    });
    let freed = SystemClock.now();
    guard.unlock().unwrap();
    let (next_token, got) = waiting.join().unwrap();
    assert!(next_token > token);
    assert!(got.since(freed) < LONG, "it waited for the lease, not for the message");
    assert!(!probe.exists("a"));
}

/// The watchdog keeps a lock for longer than its lease.
fn is_kept(server: &RedisServer, url: &str) {
    let lease = Duration::from_millis(900);
    let client = distlock::builder()
        .url(url)
        .unwrap()
        .configure(|config| config.with_watchdog(lease))
        .connect()
        .unwrap();
    let guard = client.mutex("b").unwrap().lock().unwrap();
    let_pass(3 * lease);
    assert!(guard.is_valid() && server.probe().exists("b"));
    guard.unlock().unwrap();
    assert!(!server.probe().exists("b"));
}
