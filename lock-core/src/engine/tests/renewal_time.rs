//! The time limit of a renewal: it depends on the renewal's own lease and on how long the server
//! took for earlier renewals, not on other locks.

use super::*;
use std::collections::BTreeSet;

/// Returns the time limits of the renewals of watched locks with these leases and policies.
fn times_given(held: &[(Duration, Replication)]) -> BTreeSet<Duration> {
    let (store, clock) = Recorded::new();
    let store = store.able(Abilities::full().replication(ReplicaSupport::Listed));
    let client = store.client();
    let hold = |(at, (lease, replication)): (usize, &(Duration, Replication))| {
        let options = LockOptions::new().watched(*lease).replication(*replication);
        client
            .mutex(format!("n{at}"))
            .unwrap()
            .lock_with(&options)
            .unwrap()
    };
    let _guards: Vec<_> = held.iter().enumerate().map(hold).collect();
    let longest = held.iter().map(|(lease, _)| *lease).max().unwrap();
    advance(&client, &clock, longest / 3 + SECOND / 10);
    let log = store.log.lock();
    log.iter()
        .filter(|it| it.kind == "renew")
        .map(|it| it.by.since(it.at))
        .collect()
}

#[test]
fn time_of_a_renewal_depends_on_no_other_lock() {
    let replicas = |timeout| Replication::replicas(1).timeout(timeout);
    let kinds = [
        (SECOND * 3 / 10, Replication::off()),
        (SECOND * 8 / 10, Replication::off()),
        (SECOND * 3, Replication::off()),
        (SECOND * 9, Replication::off()),
        (SECOND * 9, replicas(SECOND / 10)),
        (SECOND * 9, replicas(SECOND / 2)),
        (SECOND * 9, Replication::all().timeout(SECOND)),
    ];
    let command_timeout = 2 * SECOND;
    let alone = kinds.map(|(lease, replication)| {
        let time = (lease / 3).min(command_timeout + replication.patience());
        assert_eq!(
            times_given(&[(lease, replication)]),
            [time].into(),
            "{lease:?} alone"
        );
        time
    });
    for (kind, time) in kinds.iter().zip(alone) {
        for (other, its_time) in kinds.iter().zip(alone) {
            let times = times_given(&[*kind, *other]);
            assert_eq!(times, [time, its_time].into(), "{kind:?} beside {other:?}");
        }
    }
}

#[test]
fn renewal_is_given_twice_what_the_last_ones_took() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let options = LockOptions::new().watched(3 * SECOND);
    let guard = client.mutex("x").unwrap().lock_with(&options).unwrap();
    let renew = |fault| {
        let before = store.count("renew");
        store.fail_next("renew", fault);
        eventually("it is renewed", || {
            advance(&client, &clock, SECOND / 20);
            store.count("renew") > before
        });
        store.time_given("renew")
    };
    let quick = |times| Fault::Slow(SECOND / times);
    // At first the limit is a third of the lease. After a slow answer it is twice the time that the
    // store needed.
    assert_eq!(renew(quick(100)), SECOND);
    assert_eq!(renew(Fault::TimedOut(SECOND * 7 / 10)), SECOND);
    assert_eq!(renew(quick(5)), SECOND * 14 / 10);
    // A quick answer lowers the limit again, and the limit is never more than the command timeout.
    assert_eq!(renew(Fault::Slow(SECOND * 9 / 10)), SECOND);
    assert_eq!(renew(quick(5)), SECOND * 18 / 10);
    assert_eq!(renew(Fault::TimedOut(SECOND * 11 / 10)), SECOND);
    assert_eq!(renew(quick(5)), 2 * SECOND);
    assert!(guard.is_valid(), "{:?}", guard.loss());
}
