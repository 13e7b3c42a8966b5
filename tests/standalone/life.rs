//! Acquisition, wait, renewal and release of a lock, over any transport.

use crate::bench::LONG;
use distlock::time::{Clock, SystemClock};
use distlock_tests::guards::await_renewals;
use distlock_tests::process::RedisServer;
use distlock_tests::time::eventually;
use std::thread;
use std::time::Duration;

/// Far longer than the message of a release takes.
const LEASE: Duration = Duration::from_secs(60);

/// Runs all steps on this server, through `url`, which may have options.
pub(crate) fn of_a_lock(server: &RedisServer, url: &str) {
    is_handed_over(server, url);
    is_kept(server, url);
}

/// Passes a lock from one client to another: the message of the release wakes the waiter, long
/// before the lease is over.
fn is_handed_over(server: &RedisServer, url: &str) {
    let [ours, theirs] = [(); 2].map(|()| {
        let builder = distlock::builder().url(url).unwrap();
        builder
            .configure(|config| config.with_watchdog(LEASE))
            .connect()
            .unwrap()
    });
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
        !probe
            .command(&["PUBSUB", "CHANNELS", "*{a}:*"])
            .texts()
            .is_empty()
    });
    let freed = SystemClock.now();
    guard.unlock().unwrap();
    let (next_token, got) = waiting.join().unwrap();
    assert!(next_token > token);
    assert!(
        got.since(freed) < LEASE / 3,
        "it waited for the lease, not for the message"
    );
    assert!(!probe.exists("a"));
}

/// Checks that the watchdog renews a lock.
fn is_kept(server: &RedisServer, url: &str) {
    let client = distlock::builder()
        .url(url)
        .unwrap()
        .configure(|config| config.with_watchdog(Duration::from_secs(3)))
        .connect()
        .unwrap();
    let guard = client.mutex("b").unwrap().lock().unwrap();
    await_renewals(&guard);
    assert!(server.probe().exists("b"));
    guard.unlock().unwrap();
    assert!(!server.probe().exists("b"));
}
