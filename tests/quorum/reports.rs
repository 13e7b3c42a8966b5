//! The servers of a quorum report changes of their keys.

use distlock::DistLock;
use distlock_tests::probe::Probe;
use distlock_tests::quorum::Servers;
use distlock_tests::reports::{
    SETTINGS, STRANGER, loss_is_reported, renewals_are_few, silent_release_wakes_waiter,
};

#[test]
fn servers_report_silent_releases_and_losses() {
    let quorum = Servers::with(3, 0, &format!("max_lease=10m&{SETTINGS}"));
    let client = quorum.client();
    let mut probes: Vec<Probe> = quorum.servers.iter().map(|server| server.probe()).collect();
    silent_release_wakes_waiter(&client, "waited", &mut probes);
    loss_is_reported(&client, "held", &mut probes);
}

/// Neither the marker that is read behind a renewal counts for a change of a lock, nor a vote that
/// another has on one of the servers.
#[test]
fn held_locks_of_a_quorum_are_renewed_only_now_and_then() {
    let quorum = Servers::with(3, 0, &format!("max_lease=10m&{SETTINGS}"));
    let client = quorum.client();
    let mut probes: Vec<Probe> = quorum.servers.iter().map(|server| server.probe()).collect();
    assert_eq!(probes[2].command(&["HSET", "one", STRANGER, "1"]).int(), 1);
    assert_eq!(probes[2].command(&["PEXPIRE", "one", "600000"]).int(), 1);
    let locks = ["one", "two"].map(|name| client.mutex(name).unwrap());
    let held: Vec<_> = locks.iter().map(|lock| lock.lock().unwrap()).collect();
    renewals_are_few(&held, &mut probes);
}
