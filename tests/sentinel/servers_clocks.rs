//! Replicas whose clocks differ from the master's, one of which is promoted.

use crate::scene::{SOON, client};
use distlock_tests::process::RedisServer;
use distlock_tests::replica_clocks::{await_sample, over_a_failover};
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;
use distlock_tests::time_of_day::TimeOfDay;
use std::time::Duration;

fn started(ahead: [i64; 2]) -> (Group, [TimeOfDay; 2]) {
    let clocks = ahead.map(|ahead| {
        let clock = TimeOfDay::new();
        clock.set(ahead * 1_000);
        clock
    });
    (Group::start_on(&[&clocks[0], &clocks[1]]), clocks)
}

fn replicas(group: &Group) -> [&RedisServer; 2] {
    [&group.servers[1], &group.servers[2]]
}

/// Whichever replica is promoted, the one 6 s ahead or the one 6 s behind: the lock must not end
/// early on it.
#[test]
fn promoted_replica_with_another_clock_grants_no_second_lock() {
    for preferred in [1, 2] {
        let (mut group, _clocks) = started([6, -6]);
        let first = client(&group, "replicas=all");
        await_sample(&first, "sampled", &replicas(&group));
        group.prefer(preferred);
        let url = group.url();
        let verdict = over_a_failover(&first, "a", Duration::from_secs(20), || {
            group.servers[0].kill();
            group.await_other_than(0);
            distlock::connect(&url).unwrap()
        });
        verdict.must_be_exact();
    }
}

/// One clock is too far ahead for the lease: on that replica the lock would end early, so the
/// client must grant nothing.
#[test]
fn all_replicas_grant_nothing_while_one_is_far_ahead() {
    let (group, _clocks) = started([20, 0]);
    let client = client(
        &group,
        "replicas=all&watchdog=30s&on_insufficient_replicas=fail",
    );
    await_sample(&client, "sampled", &replicas(&group));
    let lock = client.mutex("a").unwrap();
    let said = eventually("it is known that the policy cannot be met", SOON, || {
        lock.try_lock().err().map(|error| error.to_string())
    });
    assert!(
        said.contains("2 of 2") && said.contains("1 with a clock"),
        "{said}"
    );
}
