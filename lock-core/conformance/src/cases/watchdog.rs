//! Fixed leases, and leases that the watchdog renews.

use crate::fixture::{
    always, client, eventually, fixed, is_busy, kept, let_pass, loss, ms, mutex, mutexes, named,
    patience, short, stays_held, take, take_soon, take_with, watched,
};
use crate::subject::Subject;
use lock_core::{LockGuard, LockName, LockOptions, LossCause};
use std::time::Duration;

/// A lease without renewals ends, and the next client gets the lock.
pub(crate) fn lease_without_renewal_expires(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take_with(&one, &fixed(short()));
    assert!(is_busy(&other));
    let next = take_soon(&other);
    assert!(!guard.is_valid(), "the guard knows it by the clock");
    drop(guard);
    next.unlock().expect("it is ours");
}

/// The watchdog does not renew a fixed lease while it renews others.
pub(crate) fn fixed_lease_is_not_renewed(subject: &dyn Subject) {
    let client = client(subject);
    let (kept, ending) = (named("conformance:kept:"), named("conformance:ending:"));
    let _kept = take_with(&mutex(&client, &kept), &watched(short()));
    let guard = take_with(&mutex(&client, &ending), &fixed(short()));
    eventually("the fixed one ends", patience(), || {
        !subject.probe(&ending).held
    });
    assert_eq!(
        guard.loss().map(|loss| loss.cause()),
        Some(LossCause::Expired)
    );
    assert!(subject.probe(&kept).held);
}

/// A renewed lock outlives two leases.
pub(crate) fn watchdog_keeps_lock_beyond_lease(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take_with(&one, &watched(kept()));
    stays_held(&guard, kept(), kept() * 2, || {
        subject.probe(one.name()).held
    });
    assert!(guard.is_valid());
    assert!(is_busy(&other));
    assert_eq!(guard.loss().map(|loss| loss.cause()), None);
    guard.unlock().expect("it is ours");
}

/// After the unlock the watchdog does not recreate the lock.
pub(crate) fn watchdog_stops_at_unlock(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take_with(&one, &watched(kept()));
    let_pass(kept());
    guard.unlock().expect("it is ours");
    always("it stays free", kept(), || !subject.probe(one.name()).held);
    drop(take(&other));
}

/// The loss of one of many locks that are renewed together does not affect the others.
pub(crate) fn loss_of_one_lock_keeps_the_others(subject: &dyn Subject) {
    let client = client(subject);
    let tag = named("").to_string();
    let names: Vec<_> = (0..8)
        .map(|number| LockName::new(&format!("{{{tag}}}:{number}")).expect("well formed"))
        .collect();
    let guards: Vec<LockGuard> = names
        .iter()
        .map(|name| take_with(&mutex(&client, name), &watched(kept())))
        .collect();
    subject.lose(&names[1]);
    eventually("the lost one is noticed", patience(), || {
        !guards[1].is_valid()
    });
    let_pass(kept() * 2);
    for (at, guard) in guards.into_iter().enumerate() {
        if at != 1 {
            stays_held(&guard, kept(), Duration::ZERO, || {
                subject.probe(&names[at]).held
            });
        } else {
            assert!(!subject.probe(&names[at]).held, "number {at}");
        }
        assert_eq!(guard.unlock().is_ok(), at != 1, "number {at}");
    }
}

/// After the last allowed renewal the holder is notified, and the lease ends.
pub(crate) fn last_allowed_renewal_ends_in_loss(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    // Not a shorter lease: the first renewal may open a connection, and two late renewals would end
    // the lease.
    let guard = take_with(&one, &LockOptions::new().watched_at_most(ms(900), 2));
    let loss = loss(&guard.losses());
    assert_eq!(loss.cause(), LossCause::RenewalsUsedUp);
    let next = take_soon(&other);
    assert!(!guard.is_valid());
    assert!(guard.unlock().expect_err("it is over").is_lost());
    next.unlock().expect("it is ours");
}

/// After a loss, a new acquisition of the same name is renewed.
pub(crate) fn lock_taken_again_after_loss_is_renewed(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take_with(&one, &watched(short()));
    subject.lose(one.name());
    eventually("the loss is noticed", patience(), || !guard.is_valid());
    assert!(guard.unlock().expect_err("it was lost").is_lost());
    let guard = take_with(&one, &watched(kept()));
    stays_held(&guard, kept(), kept() * 2, || {
        subject.probe(one.name()).held
    });
    guard.unlock().expect("it is ours");
}

/// `extend` lengthens the lease, in the store and for the guard.
pub(crate) fn extend_lengthens_lease(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take_with(&one, &fixed(ms(500)));
    guard.extend(ms(10_000)).expect("it is ours");
    assert!(
        guard.remaining() > ms(8_000),
        "{:?} of 10 s are left",
        guard.remaining()
    );
    let left = subject.probe(one.name()).remaining.expect("it has a lease");
    assert!(left > ms(8_000), "{left:?} of 10 s are left in the store");
    let_pass(ms(600));
    guard.unlock().expect("it is still ours");
}

/// Renewals with a shorter lease keep a lease that was extended.
pub(crate) fn watchdog_keeps_extended_lease(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take_with(&one, &watched(short()));
    guard.extend(ms(20_000)).expect("it is ours");
    let_pass(short() * 3);
    let left = subject.probe(one.name()).remaining.expect("it has a lease");
    assert!(left > ms(10_000), "{left:?} of 20 s are left in the store");
    assert!(
        guard.remaining() > ms(10_000),
        "{:?} of 20 s are left",
        guard.remaining()
    );
    guard.unlock().expect("it is ours");
}

/// Many locks are renewed, and each ends with its own unlock.
pub(crate) fn many_locks_are_renewed_together(subject: &dyn Subject) {
    let client = client(subject);
    let names: Vec<_> = (0..20).map(|_| named("conformance:many:")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| take_with(&mutex(&client, name), &watched(kept())))
        .collect();
    let_pass(kept() * 2);
    for (name, guard) in names.iter().zip(guards) {
        stays_held(&guard, kept(), Duration::ZERO, || subject.probe(name).held);
        guard.unlock().expect("it is ours");
        assert!(!subject.probe(name).held, "{name:?}");
    }
}
