//! The guarantees of each wire format in a failover.

use crate::scene::{SOON, await_move, await_renewal_on, client, take};
use distlock::{LockGuard, LockOptions, LossCause, Mutex};
use distlock_tests::probe::Value;
use distlock_tests::sentinel::Group;
use distlock_tests::time::always;
use std::time::Duration;

/// The lease of a plain lock; longer than a failover, because a plain lock is not renewed.
const LEASE: Duration = Duration::from_secs(60);

/// Pauses the replicas and cuts their links, so that no later write of the master reaches them.
fn cut_off(group: &Group) {
    group.servers[1..].iter().for_each(|server| server.pause());
    group.servers[0]
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Kills the master, and returns the number of the new master, which does not have the lock.
fn replace(group: &mut Group, name: &str) -> usize {
    group.servers[0].kill();
    group.servers[1..].iter().for_each(|server| server.resume());
    let new = group.await_other_than(0);
    assert!(!group.servers[new].probe().exists(name));
    new
}

/// Acquires the free lock with a lease longer than the test.
fn take_for_long(lock: &Mutex) -> LockGuard {
    let options = LockOptions::new().lease(LEASE);
    lock.try_lock_for_with(SOON, &options)
        .unwrap()
        .expect("the lock is free")
}

#[test]
fn token_lock_missing_on_new_master_is_lost_and_tokens_grow() {
    let mut group = Group::start();
    cut_off(&group);
    let [one, other] = [(); 2].map(|()| client(&group, "format=token&watchdog=15s"));
    let guard = take(&one.mutex("told").unwrap());
    let losses = guard.losses();
    let new = replace(&mut group, "told");
    let next = take(&other.mutex("told").unwrap());
    assert!(next.fencing_token() > guard.fencing_token());
    // The next renewal finds the loss, after a third of the lease.
    assert_eq!(losses.recv_timeout(SOON).unwrap().cause(), LossCause::Gone);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert!(
        group.servers[new].probe().exists("told"),
        "the next holder's lock is left alone"
    );
    next.unlock().unwrap();
}

#[test]
fn held_token_lock_is_kept_by_the_new_master() {
    let mut group = Group::start();
    let client = client(&group, "format=token&watchdog=16s");
    let guard = take(&client.mutex("kept").unwrap());
    group.probe().command(&["WAIT", "2", "5000"]);
    group.servers[0].kill();
    let new = group.await_other_than(0);
    await_renewal_on(&guard, &group.servers[new]);
    assert!(group.servers[new].probe().get("kept").is_some());
    guard.unlock().unwrap();
    assert!(!group.servers[new].probe().exists("kept"));
}

/// Plain locks are not renewed, so no loss is reported. The lost guard stays valid together with
/// the next holder's guard, and its release frees the next holder's lock.
#[test]
fn lost_plain_lock_reports_no_loss_and_frees_next_holders() {
    let mut group = Group::start();
    cut_off(&group);
    let [one, other] = [(); 2].map(|()| client(&group, "format=plain"));
    let guard = take_for_long(&one.mutex("silent").unwrap());
    let losses = guard.losses();
    let new = replace(&mut group, "silent");
    let next = take_for_long(&other.mutex("silent").unwrap());
    assert!(guard.is_valid() && next.is_valid(), "both guards are valid");
    assert!(losses.try_recv().is_err(), "no loss was told");
    assert!(group.servers[new].probe().exists("silent"));
    guard.unlock().unwrap();
    assert!(
        !group.servers[new].probe().exists("silent"),
        "the next holder's lock is freed"
    );
    assert!(next.unlock().is_err_and(|error| error.is_lost()));
}

/// A lock that was released on the old master may still exist on the new one. A release there could
/// free the next holder's lock, because a plain value names no owner.
#[test]
fn plain_release_is_not_repeated_on_the_new_master() {
    let mut group = Group::start();
    let client = client(&group, "format=plain&lease=60s");
    let guard = take(&client.mutex("given").unwrap());
    assert_eq!(group.probe().command(&["WAIT", "2", "5000"]), Value::Int(2));
    cut_off(&group);
    guard.unlock().unwrap();
    group.servers[0].kill();
    group.servers[1..].iter().for_each(|server| server.resume());
    let new = group.await_other_than(0);
    await_move(&client.mutex("other").unwrap(), &group.servers[new]);
    let mut probe = group.servers[new].probe();
    always("it is not freed", Duration::from_secs(1), || {
        probe.exists("given")
    });
}
