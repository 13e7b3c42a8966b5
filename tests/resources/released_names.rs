//! What a client keeps of names that it has released.

use distlock::{Client, DistLock, LockOptions};
use distlock_tests::own_process::alone;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use std::thread;
use std::time::Duration;

const NAMES: usize = 100_000;

/// The memory of this process, in kilobytes.
fn own_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    line.trim_end_matches("kB").trim().parse().expect("a number")
}

/// Takes and releases locks of so many names, each with a lease of an hour.
fn use_names(client: &Client, kind: &str, count: usize) {
    let hour = LockOptions::new().lease(Duration::from_secs(3_600));
    thread::scope(|scope| {
        for part in 0..8 {
            let hour = &hour;
            scope.spawn(move || {
                for number in part * count / 8..(part + 1) * count / 8 {
                    let lock = client.mutex(format!("{kind}:{number}")).unwrap();
                    lock.lock_with(hour).unwrap().unlock().unwrap();
                }
            });
        }
    });
}

#[test]
fn released_names_keep_little_memory() {
    alone("released_names::released_names_keep_little_memory", || {
        let server = RedisServer::start();
        let client = client(&server, "");
        use_names(&client, "first", 1_000);
        let before = own_memory();
        let watch = distlock_tests::time::Stopwatch::start();
        use_names(&client, "mutex", NAMES);
        let kept = own_memory().saturating_sub(before);
        println!(
            "{NAMES} names used within {:.1?}: {} in use, {kept} kB kept",
            watch.elapsed(),
            client.names_in_use()
        );
        distlock_tests::time::let_pass(Duration::from_secs(12));
        println!(
            "{} in use, {} kB kept",
            client.names_in_use(),
            own_memory().saturating_sub(before)
        );
    });
}
