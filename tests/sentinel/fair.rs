//! Fair locks: the queue in the store survives a failover.

use crate::scene::{SOON, client};
use distlock_tests::queue::{self, Line};
use distlock_tests::sentinel::{Group, await_move};
use distlock_tests::time::eventually;

/// The promoted replica has the master's queue, or the queue without its last change: every waiter
/// must get the lock, even if the order is lost.
#[test]
fn fair_waiters_are_all_served_after_a_failover() {
    let group = Group::steady();
    let clients = [(); 3].map(|()| client(&group, "watchdog=60s"));
    let mut probe = group.probe();
    let held = clients[0].fair_mutex("x").unwrap().lock().unwrap();
    let mut line = Line::default();
    clients
        .iter()
        .for_each(|client| line.enter(&mut probe, client.fair_mutex("x").unwrap()));
    let old = group.fail_over();
    let new = &group.servers[group.await_other_than(old)];
    let mut probe = new.probe();
    eventually("all wait there", SOON, || {
        queue::waiting(&mut probe, "x") == 3
    });
    // A grant by the old master would never reach the new one, and that lock would be lost.
    clients
        .iter()
        .for_each(|client| await_move(&client.mutex("y").unwrap(), "y", new));
    held.unlock().unwrap();
    let mut order = line.end();
    println!("served {order:?}");
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2]);
}
