//! Replicas whose clocks differ from their masters' clocks, when one of them is promoted.

use crate::scene::{LONG, client_with};
use distlock_tests::cluster::Cluster;
use distlock_tests::replica_clocks::{await_sample, over_a_failover};
use distlock_tests::time::eventually;
use distlock_tests::time_of_day::TimeOfDay;
use std::time::Duration;

const SETTINGS: &str = "watchdog=30s&command_timeout=3s&connect_timeout=2s";

/// The clocks of the replicas of three masters are 6 s ahead, 6 s behind, and 40 s ahead. The last
/// one is too far ahead for its confirmation to count.
#[test]
fn promoted_replica_with_another_clock_grants_no_second_lock() {
    let clocks = [6, -6, 40].map(|ahead| {
        let clock = TimeOfDay::new();
        clock.set(ahead * 1_000);
        clock
    });
    let mut cluster = Cluster::start_on(3, &clocks.each_ref());
    let first = client_with(&cluster.url(), &format!("{SETTINGS}&replicas=all"));
    let url = cluster.url();
    let name = cluster.name_on(0, "ahead");
    let (slot, replica) = (cluster.slot(&name), cluster.replica_of(0));
    await_sample(&first, &name, &[cluster.node(replica)]);
    let verdict = over_a_failover(&first, &name, Duration::from_secs(20), || {
        cluster.node_mut(0).kill();
        cluster.wait_for_owner(slot, replica);
        client_with(&url, SETTINGS)
    });
    verdict.must_be_exact();
    let far = cluster.name_on(2, "far");
    let refused = client_with(
        &url,
        &format!("{SETTINGS}&replicas=all&on_insufficient_replicas=fail"),
    );
    // An attempt during which the clocks become known has another error text.
    eventually("it is known that the policy cannot be met", LONG, || {
        let error = refused.mutex(&far).unwrap().try_lock().err()?.to_string();
        (error.contains("1 of 1") && error.contains("1 with a clock")).then_some(())
    });
}
