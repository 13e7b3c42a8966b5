//! What each wire format promises when another server takes the master's place.

use crate::scene::{SOON, await_move, await_renewal_on, client, take};
use distlock::{DistLock, LockGuard, LockOptions, LossCause, Mutex};
use distlock_tests::probe::Value;
use distlock_tests::sentinel::Group;
use distlock_tests::time::always;
use std::time::Duration;

/// Longer than a failover takes.
const LEASE: Duration = Duration::from_secs(60);

/// From here on the replicas hear nothing more of their master.
fn cut_off(group: &Group) {
    group.servers[1..].iter().for_each(|server| server.pause());
    group.servers[0].probe().command(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Kills the master, and returns the place of the next one, which does not have the lock.
fn replace(group: &mut Group, name: &str) -> usize {
    group.servers[0].kill();
    group.servers[1..].iter().for_each(|server| server.resume());
    let new = group.await_other_than(0);
    assert!(!group.servers[new].probe().exists(name));
    new
}

/// Takes the lock, which is free, for so long that nothing of this outlives it.
fn take_for_long(lock: &Mutex) -> LockGuard {
    let options = LockOptions::new().lease(LEASE).wait(SOON);
    lock.try_lock_with(&options).unwrap().expect("the lock is free")
}

#[test]
fn a_token_that_the_new_master_does_not_have_is_told_and_the_next_holders_is_greater() {
    let mut group = Group::start();
    cut_off(&group);
    let [one, other] = [(); 2].map(|()| client(&group, "format=token&watchdog=15s"));
    let guard = take(&one.mutex("told").unwrap());
    let losses = guard.losses();
    let new = replace(&mut group, "told");
    let next = take(&other.mutex("told").unwrap());
    assert!(next.fencing_token() > guard.fencing_token());
    // By the next renewal, at a third of the lease.
    assert_eq!(losses.recv_timeout(SOON).unwrap().cause(), LossCause::Gone);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert!(group.servers[new].probe().exists("told"), "the next holder's is left alone");
    next.unlock().unwrap();
}

#[test]
fn a_token_that_is_held_is_kept_by_the_new_master() {
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

/// The locks of the past: they are not renewed, so no loss is told. The holder goes on beside the
/// next one, and frees its lock.
#[test]
fn a_lock_of_the_past_is_lost_in_silence_and_its_release_frees_the_next_ones() {
    let mut group = Group::start();
    cut_off(&group);
    let [one, other] = [(); 2].map(|()| client(&group, "format=plain"));
    let guard = take_for_long(&one.mutex("silent").unwrap());
    let losses = guard.losses();
    let new = replace(&mut group, "silent");
    let next = take_for_long(&other.mutex("silent").unwrap());
    assert!(guard.is_valid() && next.is_valid(), "both believe that they have it");
    assert!(losses.try_recv().is_err(), "no loss was told");
    assert!(group.servers[new].probe().exists("silent"));
    guard.unlock().unwrap();
    assert!(!group.servers[new].probe().exists("silent"), "also another holder's");
    assert!(next.unlock().is_err_and(|error| error.is_lost()));
}

/// What was given back on the old master, and the new one has still: by then it may be another's,
/// and nothing tells.
#[test]
fn a_release_of_the_past_is_not_repeated_on_the_new_master() {
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
    always("it is not freed", Duration::from_secs(1), || probe.exists("given"));
}
