//! The engine while the store does not answer, and the behaviour of the store that the engine then
//! requires.

use crate::faulty::FaultyBackend;
use crate::fixture::{
    DirectBackend, Lock, always, assert_within, client, connect, context, eventually, fixed,
    fresh_name, is_busy, join, let_pass, long, loss, ms, mutex, mutexes, now, patience, prompt,
    short, spawn, stays_held, take, take_soon, take_with, watched,
};
use crate::subject::Subject;
use lock_core::backend::ReleaseOptions;
use lock_core::{Backend, GuardState, Interrupt, LockName, LossCause};
use std::sync::Arc;
use std::thread;

/// Returns the [`FaultyBackend`] of a new client, and the lock of this name in that client.
fn faulty_client(subject: &dyn Subject, name: &LockName) -> (Arc<FaultyBackend>, Lock) {
    let context = context();
    let network = FaultyBackend::on(subject.backend(&context));
    let client = connect(
        subject,
        lock_core::builder()
            .clock(context.clock)
            .backend(Arc::clone(&network) as _),
    );
    (network, mutex(&client, name))
}

/// An unreachable store is an error, never "busy". Once the store is reachable, a held lock is busy
/// again.
pub(crate) fn unreachable_store_is_not_busy(subject: &dyn Subject) {
    let [holder] = mutexes(subject);
    let (network, lock) = faulty_client(subject, holder.name());
    let guard = take(&holder);
    network.cut();
    assert!(lock.try_lock().expect_err("it cannot ask").is_unavailable());
    assert!(
        lock.try_lock_for(ms(100))
            .expect_err("it cannot ask")
            .is_unavailable()
    );
    assert!(
        lock.is_locked()
            .expect_err("it cannot ask")
            .is_unavailable()
    );
    let forced = lock.force_unlock().expect_err("it cannot ask");
    // A store without forced releases reports that without a request.
    match network.admin() {
        Some(_) => assert!(forced.is_unavailable(), "{forced}"),
        None => assert!(forced.is_unsupported(), "{forced}"),
    }
    network.mend();
    assert!(is_busy(&lock));
    guard.unlock().expect("it is ours");
    drop(take(&lock));
}

/// A waiter survives an outage that ends before its deadline.
pub(crate) fn waiter_survives_outage(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = faulty_client(subject, &name);
    network.cut();
    thread::scope(|scope| {
        let waiting = spawn(scope, || drop(take_soon(&lock)));
        let_pass(ms(150));
        network.mend();
        join(waiting);
    });
    assert!(!subject.probe(&name).held);
}

/// An acquisition whose reply was lost is repeated. The store recognises the repetition, and there
/// is one hold.
pub(crate) fn grant_with_lost_reply_is_recognised(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = faulty_client(subject, &name);
    network.lose_acquire_answers(2);
    let guard = take_soon(&lock);
    assert!(subject.probe(&name).held);
    guard.unlock().expect("it is ours");
    assert!(
        !subject.probe(&name).held,
        "one release ends it, however often it was asked for"
    );
}

/// A release whose reply was lost is repeated. The repetition finds no lock, which is not a loss.
pub(crate) fn release_with_lost_reply_is_no_loss(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = faulty_client(subject, &name);
    let guard = take(&lock);
    network.lose_release_answers(1);
    guard.unlock().expect("the first request did it");
    assert!(!subject.probe(&name).held);
    drop(take(&lock));
}

/// Makes an attempt with unknown outcome, waits until it is undone, and returns the name, the
/// [`FaultyBackend`] and the lock of its client.
fn undone_attempt(subject: &dyn Subject) -> (LockName, Arc<FaultyBackend>, Lock) {
    let name = fresh_name();
    let (network, lock) = faulty_client(subject, &name);
    network.lose_acquire_answers(u32::MAX);
    assert!(
        lock.try_lock_for(ms(100))
            .expect_err("no answer came")
            .is_unavailable()
    );
    network.mend();
    eventually("the attempt is undone", patience(), || {
        !subject.probe(&name).held
    });
    (name, network, lock)
}

/// An attempt with an unknown outcome is undone in the background, long before its lease ends.
pub(crate) fn attempt_with_unknown_outcome_is_undone(subject: &dyn Subject) {
    let (name, _network, lock) = undone_attempt(subject);
    always("and stays so", short(), || !subject.probe(&name).held);
    drop(take(&lock));
}

/// A late copy of an undone request does not take the lock.
pub(crate) fn late_copy_of_undone_attempt_takes_no_lock(subject: &dyn Subject) {
    let (name, network, _lock) = undone_attempt(subject);
    let answer = network
        .deliver_a_late_copy(now() + prompt())
        .expect("the store answers");
    assert!(answer.is_busy(), "a late copy took the lock");
    assert!(!subject.probe(&name).held);
}

/// A late copy of a request that was repeated, granted and released does not take the lock.
pub(crate) fn late_copy_of_released_attempt_takes_no_lock(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = faulty_client(subject, &name);
    network.lose_acquire_answers(1);
    take_soon(&lock).unlock().expect("it is ours");
    let answer = network
        .deliver_a_late_copy(now() + prompt())
        .expect("the store answers");
    assert!(answer.is_busy(), "a late copy took the lock");
    assert!(!subject.probe(&name).held);
}

/// An outage that ends before the lease suspends the guard. A renewal after the outage restores it.
pub(crate) fn outage_within_lease_is_survived(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = faulty_client(subject, &name);
    let guard = take_with(&lock, &watched(ms(1_000)));
    network.cut();
    eventually("renewals fail", patience(), || {
        guard.state() == GuardState::Suspended
    });
    assert!(guard.is_valid(), "its deadline is ahead");
    network.mend();
    eventually("renewals go on", patience(), || {
        guard.state() != GuardState::Suspended
    });
    stays_held(&guard, ms(1_000), ms(2_000), || subject.probe(&name).held);
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().expect("it is ours");
}

/// An outage longer than the lease is a loss by the local clock, and the lease ends in the store.
pub(crate) fn outage_beyond_lease_is_a_loss(subject: &dyn Subject) {
    let [other] = mutexes(subject);
    let (network, lock) = faulty_client(subject, other.name());
    let guard = take_with(&lock, &watched(ms(500)));
    network.cut();
    let loss = loss(&guard.losses());
    assert_eq!(loss.cause(), LossCause::Expired);
    assert!(
        loss.last_failure()
            .is_some_and(|error| error.is_unavailable())
    );
    assert!(!guard.is_valid());
    let next = take_soon(&other);
    network.mend();
    assert!(guard.unlock().expect_err("it is lost").is_lost());
    assert!(subject.probe(other.name()).held, "the next holder keeps it");
    next.unlock().expect("it is ours");
}

/// A release that could not be sent is an error, and the end of the lease frees the lock.
pub(crate) fn unlock_that_cannot_be_sent_is_an_error(subject: &dyn Subject) {
    let [other] = mutexes(subject);
    let (network, lock) = faulty_client(subject, other.name());
    let guard = take_with(&lock, &fixed(ms(2_500)));
    assert!(guard.remaining() < long());
    network.cut();
    assert!(
        guard
            .unlock()
            .expect_err("it cannot be sent")
            .is_unavailable()
    );
    drop(take_soon(&other));
}

/// A release between the answer "busy" and the start of the watch does not delay the waiter.
pub(crate) fn release_before_watch_is_not_missed(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = faulty_client(subject, &name);
    let direct = DirectBackend::open(subject);
    let owner = direct.hold(&name, long());
    let released = name.clone();
    network.before_the_next_watch(move || {
        direct.release(&released, owner, ReleaseOptions::WITHOUT_TOMBSTONE);
    });
    let start = now();
    drop(take_soon(&lock));
    assert_within("taken", now().since(start), prompt());
    assert!(!subject.probe(&name).held);
}

/// The watch ends with the wait: after a grant, a deadline and an interrupt.
pub(crate) fn ended_wait_leaves_no_watch(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = faulty_client(subject, &name);
    let holder = mutex(&client(subject), &name);
    let guard = take(&holder);
    assert!(
        lock.try_lock_for(ms(50))
            .expect("the store answers")
            .is_none()
    );
    eventually("nothing is watched after a deadline", patience(), || {
        network.watches() == 0
    });
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waiting = spawn(scope, || lock.lock_interruptibly(&interrupt).map(drop));
        eventually("it watches", patience(), || network.watches() == 1);
        interrupt.fire();
        assert!(
            join(waiting)
                .expect_err("it was interrupted")
                .is_interrupted()
        );
        eventually("nothing is watched after an interrupt", patience(), || {
            network.watches() == 0
        });
        let waiting = spawn(scope, || drop(take_soon(&lock)));
        eventually("it watches", patience(), || network.watches() == 1);
        guard.unlock().expect("it is ours");
        join(waiting);
    });
    eventually("nothing is watched after a grant", patience(), || {
        network.watches() == 0
    });
}
