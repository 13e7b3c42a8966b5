//! Foreign clients on the same key: releases without a message, locks without an expiry, and data
//! that is no lock.

use distlock::Client;
use distlock::admin::Counters;
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::{eventually, ms, within};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A lock of a foreign holder as a string; `HASH` is one like Redisson's.
const TEXT: [&str; 6] = ["SET", "x", "c3RyYW5nZXI=", "NX", "PX", "600000"];
const HASH: [&str; 4] = ["HSET", "x", "7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:5", "1"];

/// Waits for the lock on another thread, and calls `free` once that thread is queued.
fn gets_it_when(client: &Client, free: impl FnOnce()) {
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let lock = client.mutex("x").unwrap();
            within(LONG, || lock.lock().unwrap().unlock().unwrap());
        });
        eventually("it waits", LONG, || client.queue_length("x").unwrap() == 1);
        free();
        waits.join().unwrap();
    });
}

fn is_watched(probe: &mut Probe, key: &str) -> bool {
    let inboxes = format!("distlock_queue:2:{{{key}}}:*");
    let channels = probe.command(&["PUBSUB", "CHANNELS", &inboxes]);
    channels.texts().len() == 1
}

/// Without reports of changes, polling finds a release that is not published. The leases are ten
/// minutes: a waiter that does not poll is late.
#[test]
fn unpublished_release_is_found_by_polling() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    probe.command(&TEXT);
    let tokens = client(&server, "format=token&tracking=off");
    gets_it_when(&tokens, || {
        eventually("it listens", LONG, || is_watched(&mut probe, "x"));
        probe.command(&["DEL", "x"]);
    });

    // A foreign client's value that looks like one of this library's.
    probe.command(&["SET", "x", HASH[2], "NX", "PX", "600000"]);
    gets_it_when(&tokens, || {
        eventually("it listens", LONG, || is_watched(&mut probe, "x"));
        probe.command(&["DEL", "x"]);
    });

    probe.command(&HASH);
    probe.command(&["PEXPIRE", "x", "600000"]);
    let spins = client(&server, "format=redisson,poll=20ms&tracking=off");
    gets_it_when(&spins, || assert_eq!(probe.command(&["DEL", "x"]).int(), 1));
}

/// While a client of this library holds the lock, the waiter does not poll: the release notifies
/// it.
#[test]
fn waiters_behind_a_local_holder_do_not_poll() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let [ours, other] = [(); 2].map(|()| client(&server, "format=token,poll=5ms,jitter=0ms"));
    let guard = ours.mutex("x").unwrap().lock().unwrap();
    gets_it_when(&other, || {
        eventually("it listens", LONG, || is_watched(&mut probe, "x"));
        probe.reset_stats();
        distlock_tests::time::let_pass(ms(300));
        let asked = probe.command_calls("evalsha");
        assert!(
            asked <= 2,
            "it was asked {asked} times, where polling would be sixty"
        );
        guard.unlock().unwrap();
    });
}

/// A foreign lock without an expiry, in each format, is reported and can be released by force.
#[test]
fn lock_without_expiry_is_reported_once_per_wait() {
    for (format, words) in [
        ("token", &["SET", "x", "c3RyYW5nZXI=", "NX"][..]),
        ("redisson", &HASH),
        ("plain&lease=10s", &["SET", "x", "any text"]),
        ("counter&lease=10s", &["INCR", "x"]),
        ("timestamp&lease=10s", &["SETNX", "x", "2147483649"]),
    ] {
        let server = RedisServer::start();
        let mut probe = server.probe();
        probe.command(words);
        let told = Arc::new(Counters::new());
        let client = builder(&server, &format!("format={format}"))
            .events(Arc::clone(&told) as _)
            .connect()
            .unwrap();
        let lock = client.mutex("x").unwrap();
        assert!(lock.try_lock_for(ms(300)).unwrap().is_none(), "{format}");
        assert_eq!(
            lock.inspect().unwrap().holder.unwrap().remaining,
            None,
            "{format}"
        );
        eventually("it is told", LONG, || told.count("contended") == 1);
        assert_eq!(told.count("busy_without_expiry"), 1, "{format}");
        assert!(lock.force_unlock().unwrap(), "{format}");
        lock.try_lock().unwrap().unwrap().unlock().unwrap();
    }
}

#[test]
fn value_found_under_the_key_is_named() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    for (format, words, says) in [
        (
            "redisson",
            &["SET", "x", "text"][..],
            "a string, as a semaphore is; in other wire formats, such as `format=token`",
        ),
        (
            "redisson",
            &["RPUSH", "x", "a"],
            "a list, which is a lock in no format",
        ),
        (
            "redisson",
            &["HSET", "x", "name", "7"],
            "its field \"name\" is no owner",
        ),
        (
            "redisson",
            &["HSET", "x", "a:1", "seven"],
            "its field \"a:1\" is no owner",
        ),
        ("token", &HASH, "a hash, as locks are in `format=redisson`"),
        (
            "token&tokens=off",
            &HASH,
            "a hash, as locks are in `format=redisson`",
        ),
        (
            "token",
            &["ZADD", "x", "1", "a"],
            "a zset, which is a lock in no format",
        ),
        (
            "plain&lease=10s",
            &HASH,
            "a hash, as locks are in `format=redisson`",
        ),
        (
            "timestamp&lease=10s",
            &HASH,
            "a hash, as locks are in `format=redisson`",
        ),
        (
            "timestamp&lease=10s",
            &["SET", "x", "token"],
            "\"token\" is under the key \"x\"",
        ),
        (
            "counter&lease=10s",
            &HASH,
            "a hash, as locks are in `format=redisson`",
        ),
        ("counter&lease=10s", &["SET", "x", "token"], "a string"),
        ("counter,multi&lease=10s", &["RPUSH", "x", "a"], "a list"),
        (
            "counter,multi&lease=10s",
            &["SET", "x", "9223372036854775807"],
            "a number that is counted up",
        ),
        (
            "counter&lease=10s",
            &["SET", "x", "9223372036854775807"],
            "a string",
        ),
    ] {
        probe.command(words);
        let is_unchanged = |probe: &mut Probe, before: &Value| {
            probe.command(&["DUMP", "x"]) == *before && probe.pttl("x").is_none()
        };
        let before = probe.command(&["DUMP", "x"]);
        let lock = client(&server, &format!("format={format}"))
            .mutex("x")
            .unwrap();
        let failures = [
            lock.try_lock().unwrap_err(),
            lock.inspect().unwrap_err(),
            lock.force_unlock().unwrap_err(),
        ];
        assert!(
            failures[0].to_string().contains(says),
            "{format} on {words:?}: {}",
            failures[0]
        );
        for failure in failures {
            assert!(
                failure.is_foreign_format(),
                "{format} on {words:?}: {failure}"
            );
        }
        assert!(is_unchanged(&mut probe, &before), "{format} on {words:?}");
        probe.command(&["DEL", "x"]);
    }
}

/// A mutex finds Redisson's read-write lock of its name busy, and reports the holder.
#[test]
fn redisson_read_write_lock_is_busy() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    probe.command(&[
        "HSET",
        "x",
        "mode",
        "write",
        &format!("{}:write", HASH[2]),
        "1",
    ]);
    let lock = client(&server, "").mutex("x").unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    assert!(lock.inspect().unwrap().holder.is_some());
}

/// One client has locks of several formats: `with_option` makes a client of another format from it.
#[test]
fn lock_may_have_a_format_of_its_own() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "prefix=app:");
    let tokens = client.with_option("format", "token").unwrap();
    let usual = client.mutex("a").unwrap().lock().unwrap();
    let guard = tokens.mutex("b").unwrap().lock().unwrap();
    assert_eq!(probe.command(&["TYPE", "app:a"]).text(), "hash");
    assert_eq!(probe.command(&["TYPE", "app:b"]).text(), "string");
    let again = client.with_option("format", "token").unwrap();
    assert_eq!(
        (again.id(), tokens.id() == client.id()),
        (tokens.id(), false)
    );
    let back = tokens.with_option("format", "redisson").unwrap();
    assert!(back.mutex("a").unwrap().try_lock().unwrap().is_none());
    let refused = client
        .with_option("format", "tokens")
        .unwrap_err()
        .to_string();
    assert!(refused.contains("there is no format `tokens`"), "{refused}");
    usual.unlock().unwrap();
    guard.unlock().unwrap();
}
