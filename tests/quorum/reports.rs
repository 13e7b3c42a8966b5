//! The servers of a quorum report changes of their keys.

use distlock_tests::probe::Probe;
use distlock_tests::quorum::Servers;
use distlock_tests::reports::{SETTINGS, loss_is_reported, silent_release_wakes_waiter};

#[test]
fn servers_report_silent_releases_and_losses() {
    let quorum = Servers::with(3, 0, &format!("max_lease=10m&{SETTINGS}"));
    let client = quorum.client();
    let mut probes: Vec<Probe> = quorum.servers.iter().map(|server| server.probe()).collect();
    silent_release_wakes_waiter(&client, "waited", &mut probes);
    loss_is_reported(&client, "held", &mut probes);
}
