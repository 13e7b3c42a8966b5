//! What a failover loses when too few replicas are waited for: the lock is granted twice. The judge
//! that detects it is the one that finds no error in `failover_safety`.

use crate::scene::{SOON, client, take};
use distlock::{Clock, DistLock, LockGuard, LockOptions, SystemClock};
use distlock_tests::claims::{Claim, judge};
use distlock_tests::contenders::{Contenders, stay};
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;

const NAME: &str = "unconfirmed";

/// Far longer than the test takes, and not renewed: else the renewal that follows a switch, or the
/// server, would report the loss before the end of the test.
const LEASE: &str = "lease=120s&tracking=off";

/// Cuts the links of all replicas: those that are not paused reconnect, and no data for the others
/// waits in a socket.
fn cut_links(group: &Group) {
    group.servers[0].probe().command(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Kills the first master while `guard` is held and others contend with this policy. Returns the
/// place of the new master and the claims of all holders.
fn claims_over_a_kill(group: &mut Group, guard: &LockGuard, policy: &str) -> (usize, Vec<Claim>) {
    let url = format!("{}?{policy}&watchdog=5s", group.url());
    let others = Contenders::start(&url, NAME, 2, 2);
    let from = SystemClock.now();
    let new = group.replace_killed(0, 2, |group| {
        group.servers[1..].iter().for_each(|server| server.resume());
    });
    let waiting = SystemClock.now();
    let enough = || others.claims().len() >= 4 || SystemClock.now().since(waiting) >= SOON;
    let later = stay(guard, "test", from, enough).expect("it is valid");
    // A guard that is valid now has been valid since its grant.
    let mut claims = vec![Claim { from, ..later }];
    claims.extend(others.stop());
    (new, claims)
}

#[test]
fn failover_without_a_replica_policy_grants_twice() {
    let mut group = Group::start();
    group.servers[1..].iter().for_each(|server| server.pause());
    cut_links(&group);
    let client = client(&group, LEASE);
    let guard = take(&client.mutex(NAME).unwrap());
    let (_, claims) = claims_over_a_kill(&mut group, &guard, "replicas=off");
    judge(claims).must_show_a_double_grant();
    assert!(guard.verify().unwrap_err().is_lost(), "verify reports the loss");
}

#[test]
fn policy_of_all_replicas_grants_nothing_without_replicas() {
    let group = Group::start();
    group.servers[1..].iter().for_each(|server| server.pause());
    cut_links(&group);
    let lock = client(&group, "replicas=all&replication_timeout=300ms").mutex(NAME).unwrap();
    // The replicas do not answer at first, and are marked down later: none at all is too few, too.
    eventually("all replicas are marked down", SOON, || {
        let error = lock.try_lock().unwrap_err();
        assert!(error.is_insufficient_replicas(), "{error:?}");
        group.sentinels.iter().all(|sentinel| group.replicas_up(sentinel) == 0)
    });
    let error = lock.try_lock_with(&LockOptions::new()).unwrap_err();
    assert!(error.is_insufficient_replicas(), "{error:?}");
    group.servers[1..].iter().for_each(|server| server.resume());
    take(&lock).unlock().unwrap();
}

/// A group whose second replica is preferred for promotion, paused, and cut off: only the first
/// replica can confirm.
fn group_with_preferred_replica_paused() -> Group {
    let group = Group::start();
    group.prefer(2);
    group.servers[2].pause();
    cut_links(&group);
    group
}

#[test]
fn promotion_of_the_unconfirmed_replica_grants_twice() {
    let mut group = group_with_preferred_replica_paused();
    let client = client(&group, &format!("{LEASE}&replicas=1"));
    let guard = take(&client.mutex(NAME).unwrap());
    let (new, claims) = claims_over_a_kill(&mut group, &guard, "replicas=1");
    assert_eq!(new, 2);
    judge(claims).must_show_a_double_grant();
}

#[test]
fn replica_marked_down_is_not_awaited_and_may_be_promoted() {
    let mut group = group_with_preferred_replica_paused();
    eventually("it is marked down", SOON, || {
        group.sentinels.iter().all(|sentinel| group.replicas_up(sentinel) == 1)
    });
    let client = client(&group, &format!("{LEASE}&replicas=all"));
    let guard = take(&client.mutex(NAME).unwrap());
    let (new, claims) = claims_over_a_kill(&mut group, &guard, "replicas=all");
    assert_eq!(new, 2);
    judge(claims).must_show_a_double_grant();
}

#[test]
fn policy_of_two_replicas_grants_nothing_with_one_down() {
    let group = group_with_preferred_replica_paused();
    eventually("it is marked down", SOON, || {
        group.sentinels.iter().all(|sentinel| group.replicas_up(sentinel) == 1)
    });
    let lock = client(&group, "replicas=2&replication_timeout=300ms").mutex(NAME).unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_insufficient_replicas(), "{error:?}");
    group.servers[2].resume();
    take(&lock).unlock().unwrap();
}
