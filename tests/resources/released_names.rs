//! The memory that a client needs for names that it has released.

use distlock::{Client, LockOptions};
use distlock_tests::own_process::alone;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::{Stopwatch, eventually, with_tolerance};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

const NAMES: usize = 100_000;

/// Returns the memory of this process, in kilobytes.
fn own_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("it has memory");
    line.trim_end_matches("kB")
        .trim()
        .parse()
        .expect("a number")
}

/// Takes and releases locks of so many names, each with a lease of an hour.
fn use_names(client: &Client, prefix: &str, count: usize) {
    let hour = LockOptions::new().lease(Duration::from_secs(3_600));
    thread::scope(|scope| {
        for part in 0..8 {
            let hour = &hour;
            scope.spawn(move || {
                for number in part * count / 8..(part + 1) * count / 8 {
                    let lock = client.mutex(format!("{prefix}:{number}")).unwrap();
                    lock.lock_with(hour).unwrap().unlock().unwrap();
                }
            });
        }
    });
}

/// A test of the engine shows, with a manual clock, that a name is forgotten after a second. This
/// one uses a server, and prints the memory that the names need.
#[test]
#[ignore = "long: tests/run.sh --all"]
fn released_names_leave_memory_after_a_second() {
    alone(
        "released_names::released_names_leave_memory_after_a_second",
        || {
            let server = RedisServer::start();
            let client = client(&server, "");
            use_names(&client, "first", 1_000);
            let (before, watch) = (own_memory(), Stopwatch::start());
            let ((), tolerance) = with_tolerance(|| use_names(&client, "many", NAMES));
            let (took, in_use) = (watch.elapsed(), client.names_in_use());
            let memory = own_memory().saturating_sub(before);
            println!(
                "{NAMES} names within {took:.1?}: {in_use} in use, {memory} kB more than before"
            );
            let kept = took.mul_f64(in_use as f64 / NAMES as f64);
            let overdue = kept.saturating_sub(Duration::from_secs(1));
            tolerance.must_cover(overdue, Duration::from_secs(4), "names were forgotten");
            eventually("all are forgotten", LONG, || client.names_in_use() == 0);
        },
    );
}
