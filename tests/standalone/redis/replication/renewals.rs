//! Renewals that replicas must confirm.

use super::{LONG, builder, client, impatient};
use distlock::admin::Counters;
use distlock::{Event, GuardState, LockOptions, LossCause};
use distlock_tests::guards::await_renewals;
use distlock_tests::replicas::Replicated;
use distlock_tests::time::{Stopwatch, eventually, ms, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn unconfirmed_renewal_suspends_until_the_local_deadline() {
    let servers = Replicated::start(2);
    let lock = client(&servers, &impatient("2")).mutex("a").unwrap();
    let lease = ms(3_000);
    let guard = lock.lock_with(&LockOptions::new().watched(lease)).unwrap();
    let losses = guard.losses();
    servers.replicas[1].pause();
    let (clock, until) = (Stopwatch::start(), guard.remaining());
    eventually("renewals are not confirmed", LONG, || {
        guard.state() == GuardState::Suspended
    });
    assert!(guard.is_valid() && guard.remaining() < until);
    // Each unconfirmed renewal has extended the lock on the master.
    eventually("the master has extended it", LONG, || {
        servers
            .master
            .probe()
            .pttl("a")
            .is_some_and(|left| left > guard.remaining() + ms(500))
    });
    let loss = within(guard.remaining(), || losses.recv_timeout(LONG)).unwrap();
    let at = clock.elapsed();
    assert!(at >= until.saturating_sub(ms(5)), "{at:?} of {until:?}");
    assert_eq!(loss.cause(), LossCause::InsufficientReplicas);
    let why = loss.last_failure().unwrap();
    assert!(
        why.is_insufficient_replicas() && loss.to_string().contains("1 of 2"),
        "{loss}"
    );
    eventually("the lock in the store is released", LONG, || {
        !servers.master.probe().exists("a")
    });
    assert!(guard.unlock().unwrap_err().is_lost());
}

#[test]
fn suspended_lock_is_held_again_when_the_replica_is_back() {
    let servers = Replicated::start(2);
    let counters = Arc::new(Counters::new());
    let client = builder(&servers, &impatient("2"))
        .events(counters.clone())
        .connect()
        .unwrap();
    let lock = client.mutex("a").unwrap();
    let guard = lock
        .lock_with(&LockOptions::new().watched(ms(6_000)))
        .unwrap();
    servers.replicas[0].pause();
    eventually("renewals are not confirmed", LONG, || {
        guard.state() == GuardState::Suspended
    });
    servers.replicas[0].resume();
    eventually("it is held again", LONG, || {
        guard.state() == GuardState::Held
    });
    assert!(guard.remaining() > ms(3_500), "{:?}", guard.remaining());
    await_renewals(&guard);
    assert!(counters.count("renewal_failed") > 0 && counters.count("renewed") > 1);
    guard.unlock().unwrap();
}

#[test]
fn unconfirmed_extension_is_told_and_extends_nothing() {
    let servers = Replicated::start(1);
    let lock = client(&servers, &impatient("1")).mutex("a").unwrap();
    let guard = lock.lock().unwrap();
    servers.replicas[0].pause();
    let before = guard.remaining();
    let said = super::insufficient(guard.extend(ms(90_000)));
    assert!(said.contains("0 of 1"), "{said}");
    assert!(guard.remaining() <= before);
    servers.replicas[0].resume();
    servers.must_be_in_sync();
    guard.extend(ms(90_000)).unwrap();
    assert!(guard.remaining() > ms(80_000));
}

#[test]
fn lagging_replicas_delay_no_renewal_without_a_policy() {
    let servers = Replicated::start(1);
    // Longer than the short leases: a renewal that waited for the replica, or behind one that does,
    // would lose its lock.
    let time = ms(30_000).as_millis();
    let renewed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&renewed);
    let counts = move |event: &Event| {
        let is_it = matches!(event, Event::Renewed { lock, .. } if lock.as_str() == "free:0");
        count.fetch_add(u64::from(is_it), Ordering::SeqCst);
    };
    let client = builder(
        &servers,
        &format!("replicas=1&replication_timeout={time}ms"),
    )
    .events(Arc::new(counts))
    .connect()
    .unwrap();
    let off = LockOptions::new().replication(distlock::config::Replication::off());
    let lease = ms(6_000);
    let needs: Vec<_> = (0..200)
        .map(|n| {
            let lock = client.owned_mutex(format!("needs:{n}").as_str()).unwrap();
            // Due one after the other: more requests than a renewal worker has connections for.
            lock.lock_with(&LockOptions::new().watched(ms(15_000 + 20 * n)))
                .unwrap()
        })
        .collect();
    let free: Vec<_> = (0..20)
        .map(|n| {
            let lock = client.owned_mutex(format!("free:{n}").as_str()).unwrap();
            lock.lock_with(&off.clone().watched(lease)).unwrap()
        })
        .collect();
    servers.replicas[0].pause();
    let is_suspended = || {
        needs
            .iter()
            .any(|guard| guard.state() == GuardState::Suspended)
    };
    let are_held = || free.iter().all(|guard| guard.is_valid());
    eventually("renewals wait for the replica", LONG, || {
        assert!(are_held());
        is_suspended()
    });
    // Renewals that are due after those that wait.
    let before = renewed.load(Ordering::SeqCst);
    eventually("the others are renewed meanwhile", LONG, || {
        assert!(are_held());
        renewed.load(Ordering::SeqCst) >= before + 2
    });
    assert!(is_suspended());
    servers.replicas[0].resume();
    eventually("all are held again", LONG, || {
        needs.iter().all(|guard| guard.state() == GuardState::Held)
    });
}
