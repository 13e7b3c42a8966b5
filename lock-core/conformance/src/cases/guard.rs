//! Guards: release, validity and reports of losses.

use crate::fixture::{
    DirectBackend, fixed, is_busy, kept, let_pass, long, loss, ms, mutexes, short, take, take_soon,
    take_with, watched,
};
use crate::subject::Subject;
use crate::violation::violated_unless;
use lock_core::{GuardState, LockOptions, LossCause};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// Dropping the guard frees the lock.
pub(crate) fn dropped_guard_releases(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    drop(take(&one));
    assert!(!subject.probe(one.name()).held);
    drop(take(&other));
}

/// A panic under the lock releases it, with a guard and with `run`.
pub(crate) fn panic_releases(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    // `resume_unwind` bypasses the panic hook, so that the expected panics are not printed.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = take(&one);
        resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err());
    assert!(!subject.probe(one.name()).held);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        one.run(|_| resume_unwind(Box::new("on purpose")))
            .expect("the lock is free");
    }));
    assert!(panicked.is_err());
    drop(take(&other));
    one.run(|_| ()).expect("the lock is free");
}

/// A lock with a minimum hold stays busy for that time, whether its guard is dropped or unlocked.
/// The holder does not wait for the end of that time.
pub(crate) fn lock_is_kept_for_at_least_the_time_asked_for(subject: &dyn Subject) {
    let at_least = |time| LockOptions::new().at_least(time);
    for dropped in [false, true] {
        let [one, other] = mutexes(subject);
        let guard = take_with(&one, &at_least(long()));
        if dropped {
            drop(guard);
        } else {
            guard.unlock().expect("it is ours");
        }
        violated_unless(
            is_busy(&other),
            "a lock with a shortest time was free before its end",
        );
    }
    let [one, other] = mutexes(subject);
    let (clock, kept) = (subject.clock(), short());
    let before = clock.now();
    take_with(&one, &at_least(kept))
        .unlock()
        .expect("it is ours");
    drop(take_soon(&other));
    let took = clock.now().since(before);
    violated_unless(
        took >= kept,
        "a lock with a shortest time was granted before its end",
    );
    // If the hold has lasted for its minimum, the unlock frees the lock.
    let guard = take_soon(&one);
    guard.unlock().expect("it is ours");
    let guard = take_with(&one, &at_least(kept));
    let_pass(kept * 2);
    guard.unlock().expect("it is ours");
    assert!(!is_busy(&other), "it is free");
}

/// `unlock` succeeds if the store confirms it, and reports a lost lock.
pub(crate) fn unlock_reports_release_or_loss(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    take(&one).unlock().expect("it was ours, and is free");
    let guard = take(&one);
    subject.lose(one.name());
    assert!(guard.unlock().expect_err("it was gone").is_lost());
}

/// An unlock after the end of the lease fails, and the next holder keeps the lock.
pub(crate) fn release_after_lease_end_keeps_next_holder(subject: &dyn Subject) {
    let [one, other, third] = mutexes(subject);
    let guard = take_with(&one, &fixed(short()));
    let next = take_soon(&other);
    assert!(guard.unlock().expect_err("it is over").is_lost());
    violated_unless(
        subject.probe(one.name()).held,
        "a late unlock freed its successor's lock",
    );
    violated_unless(is_busy(&third), "a lock that is held was granted once more");
    next.unlock().expect("it is ours");
}

/// An unlock after the lock was deleted and granted to another holder does not release it.
pub(crate) fn unlock_after_loss_keeps_next_holder(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take(&one);
    subject.lose(one.name());
    let next = take(&other);
    assert!(guard.is_valid(), "the loss is not known yet");
    assert!(guard.unlock().expect_err("it is another's").is_lost());
    violated_unless(
        subject.probe(one.name()).held,
        "a lost guard freed its successor's lock",
    );
    next.unlock().expect("it is ours");
}

/// A guard reports the loss of its lock with the cause, and its checks fail from then on. Its token
/// can still be read.
pub(crate) fn loss_is_reported_to_holder(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take_with(&one, &watched(kept()));
    assert_eq!(guard.state(), GuardState::Held);
    guard.ensure(Duration::ZERO).expect("it is held");
    let (losses, tokens) = (guard.losses(), guard.fencing_tokens());
    subject.lose(one.name());
    let loss = loss(&losses);
    assert_eq!(loss.cause(), LossCause::Gone);
    assert_eq!(guard.state(), GuardState::Lost);
    assert!(!guard.is_valid() && !one.is_held_by_current_thread());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(
        guard
            .ensure(Duration::ZERO)
            .expect_err("it is lost")
            .is_lost()
    );
    assert_eq!(guard.fencing_tokens(), tokens);
    assert!(guard.unlock().expect_err("it is lost").is_lost());
}

/// `verify` detects that the lock was deleted from the store.
pub(crate) fn verify_detects_deleted_lock(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take_with(&one, &fixed(ms(10_000)));
    let left = guard.verify().expect("it is ours");
    assert!(
        left <= ms(10_001) && left > ms(8_000),
        "{left:?} of 10 s are left"
    );
    subject.lose(one.name());
    assert!(guard.is_valid(), "the loss is not known yet");
    assert!(guard.verify().expect_err("it is gone").is_lost());
    assert!(!guard.is_valid());
}

/// `verify` detects that another owner holds the lock.
pub(crate) fn verify_detects_other_owner(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take_with(&one, &fixed(long()));
    guard.verify().expect("it is ours");
    subject.lose(one.name());
    DirectBackend::open(subject).hold(one.name(), long());
    assert!(guard.verify().expect_err("it is another's").is_lost());
}

/// A guard is never valid for longer than the store keeps the lock.
pub(crate) fn validity_ends_before_lease(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take_with(&one, &fixed(ms(600)));
    loop {
        // The store is read before the guard. In the opposite order, a lease that ends between the
        // two reads would be reported as a violation.
        let (seen, trusted) = (subject.probe(one.name()), guard.remaining());
        if trusted.is_zero() {
            break;
        }
        let what = format!("the store dropped it, the guard is valid for {trusted:?}");
        violated_unless(seen.held, what);
        let_pass(ms(5));
    }
    assert!(!guard.is_valid());
}
