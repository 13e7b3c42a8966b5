//! Locks that pass between the threads of a client: which requests and tokens reach the server, and
//! the shares of two such clients.

use distlock::Client;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{client, counted};
use distlock_tests::time::{Stopwatch, scaled};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The largest lead of the token counter over the server's clock, in microseconds: the tokens that
/// are reserved for hand-offs.
const LEAD: i64 = 2_001;

/// How often a test is repeated that needs fast hand-offs: a busy machine may fail some rounds.
const ROUNDS: usize = 5;

/// Runs eight threads that lock and unlock for `time`, and checks that the tokens grow. Returns the
/// number of cycles.
fn crowd(client: &Client, time: Duration) -> u64 {
    let (last, cycles, watch) = (AtomicU64::new(0), AtomicU64::new(0), Stopwatch::start());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let lock = client.mutex("crowd").unwrap();
                while watch.elapsed() < time {
                    let guard = lock.lock().unwrap();
                    let token = guard.fencing_token().unwrap().get();
                    let before = last.swap(token, Ordering::SeqCst);
                    assert!(before < token, "{before} then {token}");
                    guard.unlock().unwrap();
                    cycles.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    cycles.into_inner()
}

#[test]
fn handoffs_ask_seldom_and_keep_counter_near_the_clock() {
    let server = RedisServer::start();
    let client = client(&server, "");
    let mut probe = server.probe();
    let time = scaled(Duration::from_secs(1));
    let script = "local t = redis.call('TIME') return \
                  (tonumber(redis.call('GET', KEYS[1]) or 0)) - (t[1] * 1000000 + t[2])";
    let lead = |probe: &mut distlock_tests::probe::Probe| {
        probe
            .command(&["EVAL", script, "1", "redisson_lock_token:{crowd}"])
            .int()
    };
    let asks_seldom = (0..ROUNDS).any(|_| {
        probe.reset_stats();
        let (cycles, most) = thread::scope(|scope| {
            let crowd = scope.spawn(|| crowd(&client, time));
            let mut most = i64::MIN;
            while !crowd.is_finished() {
                most = most.max(lead(&mut probe));
                thread::yield_now();
            }
            (crowd.join().unwrap(), most)
        });
        let counted = counted(&mut probe);
        println!(
            "{cycles} cycles, {counted:?}; the counter was ahead of the clock by {most} at most"
        );
        assert!(most <= LEAD, "{most}");
        counted.acquires + counted.releases < cycles / 2
    });
    assert!(
        asks_seldom,
        "half as often as the lock was taken, or more, each time"
    );
}

#[test]
fn two_contending_clients_take_turns() {
    let server = RedisServer::start();
    let (one, two) = (client(&server, ""), client(&server, ""));
    let time = scaled(Duration::from_secs(1));
    let both_had = (0..ROUNDS).any(|_| {
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| crowd(&one, time));
            let second = crowd(&two, time);
            (first.join().unwrap(), second)
        });
        println!("{first} cycles and {second}");
        let (fewer, all) = (first.min(second), first + second);
        fewer * 5 > all
    });
    assert!(both_had, "one of two had less than a fifth each time");
}
