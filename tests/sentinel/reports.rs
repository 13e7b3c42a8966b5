//! Changes of keys that masters report: the new master does, too, after a failover.

use crate::scene::{SOON, client};
use distlock_tests::reports::{
    SETTINGS, little_is_asked_of_all_kinds, loss_is_reported, silent_release_wakes_waiter,
};
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;

#[test]
fn masters_report_silent_releases_and_losses() {
    let mut group = Group::start();
    let clients = [(); 2].map(|()| client(&group, SETTINGS));
    little_is_asked_of_all_kinds(clients, &mut [group.servers[0].probe()]);
    let client = client(&group, SETTINGS);
    silent_release_wakes_waiter(&client, "waited", &mut [group.servers[0].probe()]);
    loss_is_reported(&client, "held", &mut [group.servers[0].probe()]);
    let new = group.replace_killed(0, 2, |_| {});
    let lock = client.mutex("after").unwrap();
    eventually("the new master is used", SOON, || {
        lock.try_lock().is_ok_and(|it| it.is_some())
    });
    silent_release_wakes_waiter(&client, "waited", &mut [group.servers[new].probe()]);
    loss_is_reported(&client, "held", &mut [group.servers[new].probe()]);
}
