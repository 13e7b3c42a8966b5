//! Nodes that are far away: an answer takes longer than the 100 ms after which a nearby node
//! without an answer counts as silent.

use distlock::{LockGuard, Mutex};
use distlock_tests::distance::Distance;
use distlock_tests::quorum::{Servers, place, url};
use distlock_tests::time::{let_pass, within};
use std::thread;
use std::time::Duration;

const NEAR: Duration = Duration::from_millis(2);
const FAR: Duration = Duration::from_millis(300);
const SETTINGS: &str =
    "max_lease=10m&watchdog=5m&node_timeout=10s&command_timeout=20s&outage_limit=2s";
/// How long the lock is held: longer than the outage limit.
const HELD: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(20);

/// Checks that a lock which is held on nodes at these distances is busy, and that another client
/// waits for it. Answers that are still under way must not count as an outage.
fn held_lock_is_busy(distances: [Duration; 3]) {
    let servers = Servers::with(3, 0, SETTINGS);
    let ports = servers.servers.iter().map(|server| server.port());
    let ways: Vec<_> = ports
        .zip(distances)
        .map(|(to, time)| Distance::new(to, time))
        .collect();
    let places: Vec<_> = ways.iter().map(|way| place(way.port())).collect();
    let [holder, rival] = [(), ()].map(|()| distlock::connect(&url(&places, SETTINGS)).unwrap());
    let mut guard = holder.mutex("a").unwrap().lock().unwrap();
    let lock = rival.mutex("a").unwrap();
    for _ in 0..3 {
        assert!(lock.try_lock().unwrap().is_none(), "it is held");
    }
    // The second time the waiter is still subscribed, and sends no request to subscribe.
    for _ in 0..2 {
        hand_over(&lock, guard);
        guard = holder.mutex("a").unwrap().lock().unwrap();
    }
    assert!(lock.try_lock().unwrap().is_none(), "it is held");
}

/// Unlocks `guard` while another client waits for the lock, and checks that this client gets it.
fn hand_over(lock: &Mutex, guard: LockGuard) {
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(|guard| guard.unlock()));
        let_pass(HELD);
        assert!(
            !waiter.is_finished(),
            "it has it, or gave up: {:?}",
            waiter.join()
        );
        guard.unlock().unwrap();
        within(SOON, || waiter.join().unwrap().unwrap());
    });
}

#[test]
fn lock_held_on_far_nodes_is_busy() {
    held_lock_is_busy([FAR; 3]);
}

#[test]
fn lock_held_on_one_near_and_two_far_nodes_is_busy() {
    held_lock_is_busy([NEAR, FAR, FAR]);
}
