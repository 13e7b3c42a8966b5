//! The servers of a quorum report changes of their keys.

use distlock::Client;
use distlock_tests::probe::Probe;
use distlock_tests::quorum::Servers;
use distlock_tests::reports::{
    SETTINGS, STRANGER, little_is_asked, loss_is_reported, silent_release_wakes_waiter,
};

#[test]
fn servers_report_silent_releases_and_losses() {
    let quorum = Servers::with(3, 0, &format!("max_lease=10m&{SETTINGS}"));
    let client = quorum.client();
    let mut probes: Vec<Probe> = quorum.servers.iter().map(|server| server.probe()).collect();
    silent_release_wakes_waiter(&client, "waited", &mut probes);
    loss_is_reported(&client, "held", &mut probes);
}

/// A renewal reads the marker, too, and another owner has a vote on one server: neither may count
/// as a change of the lock, which would cause requests.
#[test]
fn quorum_is_asked_little_while_locks_are_held_and_waited_for() {
    let quorum = Servers::with(3, 0, &format!("max_lease=10m&{SETTINGS}"));
    let client = quorum.client();
    let mut probes: Vec<Probe> = quorum.servers.iter().map(|server| server.probe()).collect();
    assert_eq!(probes[2].command(&["HSET", "one", STRANGER, "1"]).int(), 1);
    assert_eq!(probes[2].command(&["PEXPIRE", "one", "600000"]).int(), 1);
    let locks = |client: &Client| ["one", "two"].map(|name| client.mutex(name).unwrap());
    let (held, wanted) = (locks(&client), locks(&quorum.client()));
    little_is_asked(
        &held.each_ref().map(|it| it as _),
        &wanted.each_ref().map(|it| it as _),
        &mut probes,
    );
}
