//! Nested holds: the client counts them, and in the store they are a single hold.

use crate::fixture::{
    elsewhere, eventually, fixed, is_busy, kept, let_pass, long, ms, mutexes, patience, short,
    stays_held, take, take_soon, take_with, tokens_of, watched,
};
use crate::subject::Subject;
use lock_core::LockGuard;

/// The hold count goes 0, 1, 2, 1, 0, and only the last unlock frees the lock.
pub(crate) fn nested_holds_are_counted(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    assert_eq!(one.hold_count(), 0);
    let outer = take(&one);
    assert_eq!(one.hold_count(), 1);
    let inner = take(&one);
    assert_eq!(one.hold_count(), 2);
    assert_eq!(elsewhere(|| one.hold_count()), 0, "another thread has none");
    inner.unlock().expect("it is ours");
    assert_eq!(one.hold_count(), 1);
    assert!(is_busy(&other), "one hold is left");
    outer.unlock().expect("it is ours");
    assert_eq!(one.hold_count(), 0);
    assert!(!subject.probe(one.name()).held);
    drop(take(&other));
}

/// Nested guards unlock in any order.
pub(crate) fn nested_guards_unlock_in_any_order(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let (first, second, third) = (take(&one), take(&one), take(&one));
    first.unlock().expect("it is ours");
    assert!(is_busy(&other));
    third.unlock().expect("it is ours");
    assert!(is_busy(&other));
    second.unlock().expect("it is ours");
    drop(take(&other));
}

/// Each `unlock` of a mutex ends one detached hold. Without a detached hold the call is misuse.
pub(crate) fn detached_holds_end_by_unlock(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    assert!(one.unlock().expect_err("nothing is held").is_not_held());
    take(&one).detach();
    take(&one).detach();
    assert_eq!(one.hold_count(), 2);
    one.unlock().expect("it is ours");
    assert!(is_busy(&other));
    one.unlock().expect("it is ours");
    assert!(!subject.probe(one.name()).held);
    let error = one.unlock().expect_err("nothing is held any more");
    assert!(error.is_not_held() && error.is_misuse());
    let guard = take(&one);
    assert!(
        one.unlock()
            .expect_err("a guard is not detached")
            .is_not_held()
    );
    guard.unlock().expect("it is ours");
    drop(take(&other));
}

/// Nested guards have the token of the first guard; the next holder's token is larger.
pub(crate) fn reentry_keeps_token(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let (outer, inner) = (take(&one), take_with(&one, &fixed(long())));
    let token = tokens_of(&outer);
    assert_eq!(tokens_of(&inner), token);
    drop((inner, outer));
    assert!(tokens_of(&take(&other)) > token);
}

/// A nested hold with a shorter lease keeps the longer lease.
pub(crate) fn reentry_never_shortens_lease(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let _outer = take_with(&one, &fixed(ms(4_000)));
    let inner = take_with(&one, &fixed(short()));
    let_pass(short() + ms(300));
    assert!(is_busy(&other), "the outer lease runs on");
    inner.unlock().expect("the outer lease runs on");
    assert!(is_busy(&other));
}

/// A nested hold with a longer lease extends the lease of all holds.
pub(crate) fn reentry_with_longer_lease_extends_it(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let outer = take_with(&one, &fixed(ms(500)));
    let inner = take_with(&one, &fixed(ms(10_000)));
    assert!(inner.remaining() > ms(8_000));
    let left = subject.probe(one.name()).remaining.expect("it has a lease");
    assert!(left > ms(8_000), "{left:?} of 10 s are left in the store");
    let_pass(ms(600));
    assert!(outer.is_valid());
    drop(inner);
    outer.unlock().expect("it is ours");
}

/// Unlocking two of three nested holds keeps the lease.
pub(crate) fn nested_unlock_keeps_remaining_lease(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guards: [LockGuard; 3] = std::array::from_fn(|_| take_with(&one, &fixed(ms(10_000))));
    let [first, second, third] = guards;
    third.unlock().expect("it is ours");
    second.unlock().expect("it is ours");
    let left = one
        .time_to_live()
        .expect("the store answers")
        .expect("it is held");
    assert!(
        left <= ms(10_001) && left > ms(8_000),
        "{left:?} of 10 s are left"
    );
    assert_eq!(
        subject
            .probe(one.name())
            .remaining
            .map(|left| left > ms(8_000)),
        Some(true)
    );
    first.unlock().expect("it is ours");
    assert_eq!(one.time_to_live().expect("the store answers"), None);
}

/// After nested holds of one thread, the lock of another thread is renewed.
pub(crate) fn renewal_continues_after_reentry(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    elsewhere(|| {
        let (outer, inner) = (take_with(&one, &watched(short())), take(&one));
        drop((inner, outer));
    });
    let guard = take_with(&one, &watched(kept()));
    stays_held(&guard, kept(), kept() * 2, || {
        subject.probe(one.name()).held
    });
    assert!(guard.is_valid());
    assert!(is_busy(&other));
    guard.unlock().expect("it is ours");
}

/// A nested hold with a watchdog lease does not start renewals of a fixed lease.
pub(crate) fn reentry_does_not_renew_fixed_lease(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let outer = take_with(&one, &fixed(short()));
    let inner = take(&one);
    let next = take_soon(&other);
    assert!(!outer.is_valid() && !inner.is_valid());
    assert!(inner.unlock().expect_err("it is over").is_lost());
    assert!(outer.unlock().expect_err("it is over").is_lost());
    next.unlock().expect("the late unlocks did it no harm");
}

/// A thread cannot take a lost lock again before it has dropped its guards of that lock.
pub(crate) fn reentry_after_loss_is_refused(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take_with(&one, &watched(kept()));
    subject.lose(one.name());
    eventually("the guard learns of the loss", patience(), || {
        !guard.is_valid()
    });
    assert!(one.try_lock().expect_err("it is lost").is_lost());
    assert_eq!(one.hold_count(), 1);
    assert!(!one.is_held_by_current_thread());
    drop(guard);
    drop(take(&one));
}
