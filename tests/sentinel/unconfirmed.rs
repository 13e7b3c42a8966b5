//! Double grants in a failover if too few replicas had confirmed the lock. They are detected by the
//! same [`judge`] that finds no error in `failover_safety`.

use crate::fake_sentinel::Liar;
use crate::scene::{SOON, client, connect, take};
use distlock::time::{Clock, SystemClock};
use distlock::{Client, LockGuard, LockOptions};
use distlock_tests::claims::{Claim, judge};
use distlock_tests::contenders::{Contenders, stay};
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;

const NAME: &str = "unconfirmed";

/// The lease of the lost lock: far longer than the test, so that neither a renewal nor the server's
/// tracking reports the loss before the end of the test.
const LEASE: &str = "watchdog=120s&tracking=off";

/// Makes a client that gets no message of the failover; otherwise it would find its loss at once.
/// Its sentinel, a fake one that no other client uses, lists this replica and reports no `run_id`.
fn uninformed(group: &Group, replica: usize, options: &str) -> (Liar, Client) {
    let sentinel = Liar::naming(group.servers[0].port(), 0);
    sentinel.list_replicas(&[(group.servers[replica].port(), String::new())]);
    let client = connect(&format!("{}?{options}", sentinel.url()));
    (sentinel, client)
}

/// Cuts the links of all replicas. The running replicas reconnect, and no data for the paused ones
/// waits in a socket.
fn cut_links(group: &Group) {
    group.servers[0]
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Kills the first master while `guard` is held and other processes contend with this policy.
/// Returns the number of the new master, and the claims of all holders.
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
    let (sentinel, client) = uninformed(&group, 1, LEASE);
    let guard = take(&client.mutex(NAME).unwrap());
    let (new, claims) = claims_over_a_kill(&mut group, &guard, "replicas=off");
    judge(claims).must_show_a_double_grant();
    sentinel.name(group.servers[new].port(), 1);
    eventually("verify reports the loss", SOON, || {
        guard.verify().is_err_and(|error| error.is_lost())
    });
}

#[test]
fn policy_of_all_replicas_grants_nothing_without_replicas() {
    let group = Group::start();
    group.servers[1..].iter().for_each(|server| server.pause());
    cut_links(&group);
    let lock = client(&group, "replicas=all&replication_timeout=300ms")
        .mutex(NAME)
        .unwrap();
    // At first the replicas do not answer; later they are marked down. In both cases too few
    // confirm.
    eventually("all replicas are marked down", SOON, || {
        let error = lock.try_lock().unwrap_err();
        assert!(error.is_insufficient_replicas(), "{error:?}");
        group
            .sentinels
            .iter()
            .all(|sentinel| group.replicas_up(sentinel) == 0)
    });
    let error = lock.try_lock_with(&LockOptions::new()).unwrap_err();
    assert!(error.is_insufficient_replicas(), "{error:?}");
    group.servers[1..].iter().for_each(|server| server.resume());
    take(&lock).unlock().unwrap();
}

/// Starts a group whose second replica is preferred for promotion, paused, and cut off, so that
/// only the first replica can confirm.
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
    let (_sentinel, client) = uninformed(&group, 1, &format!("{LEASE}&replicas=1"));
    let guard = take(&client.mutex(NAME).unwrap());
    let (new, claims) = claims_over_a_kill(&mut group, &guard, "replicas=1");
    assert_eq!(new, 2);
    judge(claims).must_show_a_double_grant();
}

#[test]
fn replica_marked_down_is_not_awaited_and_may_be_promoted() {
    let mut group = group_with_preferred_replica_paused();
    eventually("it is marked down", SOON, || {
        group
            .sentinels
            .iter()
            .all(|sentinel| group.replicas_up(sentinel) == 1)
    });
    let (_sentinel, client) = uninformed(&group, 1, &format!("{LEASE}&replicas=all"));
    let guard = take(&client.mutex(NAME).unwrap());
    let (new, claims) = claims_over_a_kill(&mut group, &guard, "replicas=all");
    assert_eq!(new, 2);
    judge(claims).must_show_a_double_grant();
}

#[test]
fn policy_of_two_replicas_grants_nothing_with_one_down() {
    let group = group_with_preferred_replica_paused();
    eventually("it is marked down", SOON, || {
        group
            .sentinels
            .iter()
            .all(|sentinel| group.replicas_up(sentinel) == 1)
    });
    let lock = client(&group, "replicas=2&replication_timeout=300ms")
        .mutex(NAME)
        .unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_insufficient_replicas(), "{error:?}");
    group.servers[2].resume();
    take(&lock).unlock().unwrap();
}
