//! What the engine makes of a store that cannot be asked, or does not answer; and that the store
//! plays its part.

use crate::backend::ReleaseOptions;
use crate::client::Client;
use crate::conformance::faulty::FaultyBackend;
use crate::conformance::fixture::{
    Line, Lock, always, client, connect, context, eventually, fixed, fresh_name, in_time, is_busy,
    join, let_pass, long, loss, ms, mutex, mutexes, now, patience, prompt, short, spawn,
    stays_held, take, take_soon, take_with, watched,
};
use crate::conformance::subject::Subject;
use crate::engine::acquisition::GuardState;
use crate::interrupt::Interrupt;
use crate::loss::LossCause;
use std::sync::Arc;
use std::thread;

/// A client with a network that can be tampered with, and its lock.
fn fragile(subject: &dyn Subject, name: &crate::LockName) -> (Arc<FaultyBackend>, Lock) {
    let context = context();
    let network = FaultyBackend::on(subject.backend(&context));
    let client =
        connect(subject, Client::builder().clock(context.clock).backend(Arc::clone(&network) as _));
    (network, mutex(&client, name))
}

/// "Could not ask" is never "busy", and busy, once one can ask again, is busy.
pub(crate) fn unreachable_store_is_not_busy(subject: &dyn Subject) {
    let [holder] = mutexes(subject);
    let (network, lock) = fragile(subject, holder.name());
    let guard = take(&holder);
    network.cut();
    assert!(lock.try_lock().expect_err("it cannot ask").is_unavailable());
    assert!(lock.try_lock_for(ms(100)).expect_err("it cannot ask").is_unavailable());
    assert!(lock.is_locked().expect_err("it cannot ask").is_unavailable());
    assert!(lock.force_unlock().expect_err("it cannot ask").is_unavailable());
    network.mend();
    assert!(is_busy(&lock));
    guard.unlock().expect("it is ours");
    drop(take(&lock));
}

/// A waiter bears an outage that ends before its deadline does.
pub(crate) fn waiter_survives_outage(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    network.cut();
    thread::scope(|scope| {
        let waiting = spawn(scope, || drop(take_soon(&lock)));
        let_pass(ms(150));
        network.mend();
        join(waiting);
    });
    assert!(!subject.probe(&name).held);
}

/// An acquire whose answer was lost is repeated, recognised, and held once.
pub(crate) fn grant_with_lost_reply_is_recognised(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    network.lose_acquire_answers(2);
    let guard = take_soon(&lock);
    assert!(subject.probe(&name).held);
    guard.unlock().expect("it is ours");
    assert!(!subject.probe(&name).held, "one release ends it, however often it was asked for");
}

/// A release whose answer was lost is repeated; that the second finds nothing is no loss.
pub(crate) fn release_with_lost_reply_is_no_loss(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    let guard = take(&lock);
    network.lose_release_answers(1);
    guard.unlock().expect("the first request did it");
    assert!(!subject.probe(&name).held);
    drop(take(&lock));
}

/// An attempt that ends without knowing its outcome is undone in the background, long before its
/// lease ends.
pub(crate) fn attempt_with_unknown_outcome_is_undone(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    network.lose_acquire_answers(u32::MAX);
    assert!(lock.try_lock_for(ms(100)).expect_err("no answer came").is_unavailable());
    network.mend();
    eventually("what it took is given back", patience(), || !subject.probe(&name).held);
    always("and stays so", short(), || !subject.probe(&name).held);
    drop(take(&lock));
}

/// A copy of a request that was given up arrives late, and locks for nobody.
pub(crate) fn late_copy_of_undone_attempt_takes_no_lock(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    network.lose_acquire_answers(u32::MAX);
    assert!(lock.try_lock_for(ms(100)).expect_err("no answer came").is_unavailable());
    network.mend();
    eventually("what it took is given back", patience(), || !subject.probe(&name).held);
    let answer = network.deliver_a_late_copy(now() + prompt()).expect("the store answers");
    assert!(answer.is_busy(), "it locked for nobody");
    assert!(!subject.probe(&name).held);
}

/// The same for a copy of a request that was repeated, granted, used and given back.
pub(crate) fn late_copy_of_released_attempt_takes_no_lock(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    network.lose_acquire_answers(1);
    take_soon(&lock).unlock().expect("it is ours");
    let answer = network.deliver_a_late_copy(now() + prompt()).expect("the store answers");
    assert!(answer.is_busy(), "it locked for nobody");
    assert!(!subject.probe(&name).held);
}

/// An outage that ends before the lease does is survived: suspended meanwhile, then held as before.
pub(crate) fn outage_within_lease_is_survived(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    let guard = take_with(&lock, &watched(ms(1_000)));
    network.cut();
    eventually("renewals fail", patience(), || guard.state() == GuardState::Suspended);
    assert!(guard.is_valid(), "its deadline is ahead");
    network.mend();
    eventually("renewals go on", patience(), || guard.state() != GuardState::Suspended);
    stays_held(&guard, ms(2_000), || subject.probe(&name).held);
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().expect("it is ours");
}

/// An outage that lasts longer ends the holding by our own clock, and the store ends it by its.
pub(crate) fn outage_beyond_lease_is_a_loss(subject: &dyn Subject) {
    let [other] = mutexes(subject);
    let (network, lock) = fragile(subject, other.name());
    let guard = take_with(&lock, &watched(ms(500)));
    network.cut();
    let loss = loss(&guard.losses());
    assert_eq!(loss.cause(), LossCause::Expired);
    assert!(loss.last_failure().is_some_and(|error| error.is_unavailable()));
    assert!(!guard.is_valid());
    let next = take_soon(&other);
    network.mend();
    assert!(guard.unlock().expect_err("it is lost").is_lost());
    assert!(subject.probe(other.name()).held, "the next holder keeps it");
    next.unlock().expect("it is ours");
}

/// A release that could not be sent is told, and the lease ends the lock.
pub(crate) fn unlock_that_cannot_be_sent_is_an_error(subject: &dyn Subject) {
    let [other] = mutexes(subject);
    let (network, lock) = fragile(subject, other.name());
    let guard = take_with(&lock, &fixed(ms(2_500)));
    assert!(guard.remaining() < long());
    network.cut();
    assert!(guard.unlock().expect_err("it cannot be sent").is_unavailable());
    drop(take_soon(&other));
}

/// A release between the answer "busy" and the beginning of the watch is told to nobody, and missed
/// by nobody.
pub(crate) fn release_before_watch_is_not_missed(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    let line = Line::open(subject);
    let owner = line.hold(&name, long());
    let released = name.clone();
    network.before_the_next_watch(move || {
        line.release(&released, owner, ReleaseOptions::WITHOUT_TOMBSTONE);
    });
    let start = now();
    drop(take_soon(&lock));
    in_time("taken", now().since(start), prompt());
    assert!(!subject.probe(&name).held);
}

/// When nobody waits any more, nothing is watched any more: after a grant, a deadline and an
/// interrupt.
pub(crate) fn ended_wait_leaves_no_watch(subject: &dyn Subject) {
    let name = fresh_name();
    let (network, lock) = fragile(subject, &name);
    let holder = mutex(&client(subject), &name);
    let guard = take(&holder);
    assert!(lock.try_lock_for(ms(50)).expect("the store answers").is_none());
    eventually("nothing is watched after a deadline", patience(), || network.watches() == 0);
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waiting = spawn(scope, || lock.lock_interruptibly(&interrupt).map(drop));
        eventually("it watches", patience(), || network.watches() == 1);
        interrupt.fire();
        assert!(join(waiting).expect_err("it was interrupted").is_interrupted());
        eventually("nothing is watched after an interrupt", patience(), || network.watches() == 0);
        let waiting = spawn(scope, || drop(take_soon(&lock)));
        eventually("it watches", patience(), || network.watches() == 1);
        guard.unlock().expect("it is ours");
        join(waiting);
    });
    eventually("nothing is watched after a grant", patience(), || network.watches() == 0);
}
