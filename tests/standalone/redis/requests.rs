//! What a lock and an unlock cost the server, by its own counters.

use distlock_tests::process::RedisServer;
use distlock_tests::redis::{Counted, client, counted};

#[test]
fn uncontended_cycle_takes_two_round_trips_nested_none() {
    let server = RedisServer::start();
    let client = client(&server, "");
    let lock = client.mutex("cost").unwrap();
    lock.lock().unwrap().unlock().unwrap(); // the server knows the scripts from here on
    let mut probe = server.probe();
    probe.reset_stats();
    let (reads, commands) = (
        probe.stat("total_reads_processed"),
        probe.stat("total_commands_processed"),
    );
    let (own_reads, own_commands) = {
        // The cost of reading the two counters once.
        let again = (
            probe.stat("total_reads_processed"),
            probe.stat("total_commands_processed"),
        );
        (again.0 - reads, again.1 - commands)
    };
    for _ in 0..100 {
        let guard = lock.lock().unwrap();
        for _ in 0..10 {
            lock.lock().unwrap().unlock().unwrap();
        }
        guard.unlock().unwrap();
    }
    let (all_reads, all_commands) = (
        probe.stat("total_reads_processed"),
        probe.stat("total_commands_processed"),
    );
    assert_eq!(
        counted(&mut probe),
        Counted {
            scripts: 200,
            acquires: 100,
            releases: 100,
            subscriptions: 0
        }
    );
    // Calls inside scripts count as commands, too, so the requests are counted as scripts above. A
    // round trip is one read.
    assert_eq!(
        all_reads - reads - 2 * own_reads,
        200,
        "the server read once for each request"
    );
    assert!(all_commands - commands - 2 * own_commands >= 200);
}

#[test]
fn stored_values_are_those_of_redisson() {
    let server = RedisServer::start();
    let client = client(&server, "watchdog=30s");
    let lock = client.mutex("orders:42").unwrap();
    let guard = lock.lock().unwrap();
    let mut probe = server.probe();
    let stored = probe.hgetall("orders:42");
    let (owner, holds) = stored.iter().next().unwrap();
    let (uuid, number) = owner.split_once(':').unwrap();
    assert_eq!(
        (stored.len(), holds.as_str(), uuid.len()),
        (1, "1", 36),
        "{stored:?}"
    );
    assert_eq!(
        uuid.split('-').map(str::len).collect::<Vec<_>>(),
        [8, 4, 4, 4, 12]
    );
    assert!(number.parse::<u64>().is_ok());
    assert_eq!(uuid, client.id().to_string());
    let left = probe.pttl("orders:42").unwrap();
    assert!(
        left.as_secs_f64() > 29.0 && left.as_secs_f64() <= 30.0,
        "{left:?}"
    );
    assert_eq!(
        probe.keys("*"),
        ["orders:42", "redisson_lock_token:{orders:42}"]
    );
    assert_eq!(
        probe
            .command(&["GET", "redisson_lock_token:{orders:42}"])
            .text(),
        guard.fencing_token().unwrap().to_string()
    );
    guard.unlock().unwrap();
    assert_eq!(probe.keys("*"), ["redisson_lock_token:{orders:42}"]);
    assert!(
        probe.pttl("redisson_lock_token:{orders:42}").is_some(),
        "the counter expires"
    );
}
