//! Each node reports changes of its keys, also those of a slot that has moved to it.

use crate::scene::client_with;
use distlock_tests::cluster::Cluster;
use distlock_tests::reports::{
    SETTINGS, little_is_asked_of_all_kinds, loss_is_reported, silent_release_wakes_waiter,
};

#[test]
fn nodes_report_silent_releases_and_losses() {
    let cluster = Cluster::start();
    let client = client_with(&cluster.url(), SETTINGS);
    let mut probes = [0, 1, 2].map(|node| cluster.node(node).probe());
    let clients = [(); 2].map(|()| client_with(&cluster.url(), SETTINGS));
    little_is_asked_of_all_kinds(clients, &mut probes);
    for node in 0..2 {
        let name = cluster.name_on(node, "reported");
        silent_release_wakes_waiter(&client, &name, &mut [cluster.node(node).probe()]);
        loss_is_reported(&client, &name, &mut [cluster.node(node).probe()]);
    }
    let name = cluster.name_on(0, "moved");
    cluster.move_slot(cluster.slot(&name), 0, 1);
    silent_release_wakes_waiter(&client, &name, &mut [cluster.node(1).probe()]);
    loss_is_reported(&client, &name, &mut [cluster.node(1).probe()]);
}
