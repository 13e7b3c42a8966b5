//! What a failover loses when too few replicas are waited for, seen to happen: the lock is granted
//! twice, and the judge that sees it is the same that finds nothing in `judged`.

use crate::scene::{SOON, client, take};
use distlock::{Clock, DistLock, LockGuard, LockOptions, SystemClock};
use distlock_tests::claims::{Claim, judge};
use distlock_tests::contenders::{Contenders, stay};
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;

const NAME: &str = "unconfirmed";

/// Far longer than all of it takes, so that no renewal tells the holder before.
const LEASE: &str = "watchdog=120s";

/// Has all replicas that are not paused connect anew; from the others nothing more is heard, and
/// nothing waits for them on the way.
fn cut_links(group: &Group) {
    group.servers[0].probe().command(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Kills the first master while `guard` is held, has others want the lock with this policy, and
/// returns which server has taken its place and what all of them say.
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
    // A guard that is valid has been so since it was got.
    let mut claims = vec![Claim { from, ..later }];
    claims.extend(others.stop());
    (new, claims)
}

#[test]
fn without_waiting_for_replicas_a_failover_can_grant_twice() {
    let mut group = Group::start();
    group.servers[1..].iter().for_each(|server| server.pause());
    cut_links(&group);
    let client = client(&group, LEASE);
    let guard = take(&client.mutex(NAME).unwrap());
    let (_, claims) = claims_over_a_kill(&mut group, &guard, "replicas=off");
    judge(claims).must_show_a_double_grant();
    assert!(guard.verify().unwrap_err().is_lost(), "who asks is told");
}

#[test]
fn where_all_are_waited_for_the_same_grants_nothing() {
    let group = Group::start();
    group.servers[1..].iter().for_each(|server| server.pause());
    cut_links(&group);
    let lock = client(&group, "replicas=all&replication_timeout=300ms").mutex(NAME).unwrap();
    // First they do not answer, and then they are held for down: none at all is too few, too.
    eventually("all replicas are held for down", SOON, || {
        let error = lock.try_lock().unwrap_err();
        assert!(error.is_insufficient_replicas(), "{error:?}");
        group.sentinels.iter().all(|sentinel| group.replicas_up(sentinel) == 0)
    });
    let error = lock.try_lock_with(&LockOptions::new()).unwrap_err();
    assert!(error.is_insufficient_replicas(), "{error:?}");
    group.servers[1..].iter().for_each(|server| server.resume());
    take(&lock).unlock().unwrap();
}

/// A group whose second replica is the one to be promoted, is paused, and has its link cut: only
/// the first one can confirm.
fn with_the_heir_away() -> Group {
    let group = Group::start();
    group.prefer(2);
    group.servers[2].pause();
    cut_links(&group);
    group
}

#[test]
fn where_one_of_two_is_waited_for_the_other_may_be_promoted_and_then_it_is_granted_twice() {
    let mut group = with_the_heir_away();
    let client = client(&group, &format!("{LEASE}&replicas=1"));
    let guard = take(&client.mutex(NAME).unwrap());
    let (new, claims) = claims_over_a_kill(&mut group, &guard, "replicas=1");
    assert_eq!(new, 2);
    judge(claims).must_show_a_double_grant();
}

#[test]
fn one_that_is_held_for_down_is_not_waited_for_and_may_be_back_in_time_to_be_promoted() {
    let mut group = with_the_heir_away();
    eventually("it is held for down", SOON, || {
        group.sentinels.iter().all(|sentinel| group.replicas_up(sentinel) == 1)
    });
    let client = client(&group, &format!("{LEASE}&replicas=all"));
    let guard = take(&client.mutex(NAME).unwrap());
    let (new, claims) = claims_over_a_kill(&mut group, &guard, "replicas=all");
    assert_eq!(new, 2);
    judge(claims).must_show_a_double_grant();
}

#[test]
fn where_a_number_is_waited_for_it_must_be_there() {
    let group = with_the_heir_away();
    eventually("it is held for down", SOON, || {
        group.sentinels.iter().all(|sentinel| group.replicas_up(sentinel) == 1)
    });
    let lock = client(&group, "replicas=2&replication_timeout=300ms").mutex(NAME).unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_insufficient_replicas(), "{error:?}");
    group.servers[2].resume();
    take(&lock).unlock().unwrap();
}
