//! Replication policies as a program sees them.

use crate::faulty::FaultyBackend;
use crate::fixture::{
    Lock, client, connect, context, eventually, fresh_name, hold_back, impatient, is_busy, join,
    let_pass, long, loss, ms, mutex, mutexes, patience, patient, poll, replicas, spawn, stays_held,
    take, take_soon, take_with, watched,
};
use crate::subject::Subject;
use lock_core::backend::ReplicaSupport;
use lock_core::{
    Event, GuardState, InsufficientReplicas, LockName, LockOptions, LossCause,
    OnInsufficientReplicas, Replication,
};
use parking_lot::Mutex as Cell;
use std::sync::{Arc, mpsc};
use std::thread;

/// Returns the lock of this name in a new client with this policy.
fn under(subject: &dyn Subject, name: &LockName, policy: Replication) -> Lock {
    let builder = subject.client(&context());
    mutex(
        &connect(
            subject,
            builder.configure(|config| config.with_replication(policy)),
        ),
        name,
    )
}

/// A store that never has replicas refuses every policy. A store that does not know how many
/// replicas it should have refuses "all". A store that knows the number accepts both policies. A
/// policy of zero replicas is always refused.
pub(crate) fn unsupported_replication_policy_is_refused(subject: &dyn Subject) {
    let can = subject.backend(&context()).abilities().replication;
    let has_any = subject.replicas().is_some();
    assert!(
        !has_any || can != ReplicaSupport::Never,
        "it has replicas, and says that it has none"
    );
    let one = Replication::replicas(1).timeout(ms(300));
    let all = Replication::all().timeout(ms(300));
    for (policy, is_kept) in [
        (one, can != ReplicaSupport::Never),
        (all, can == ReplicaSupport::Listed),
    ] {
        let [lock] = mutexes(subject);
        let asked = lock
            .try_lock_with(&LockOptions::new().replication(policy))
            .map(drop);
        let builder = subject.client(&context());
        let opened = builder
            .configure(|config| config.with_replication(policy))
            .connect();
        for error in [asked.err(), opened.err()] {
            // A store that supports replicas and has none at the moment reports too few
            // confirmations instead.
            let is_refused = error.is_some_and(|error| error.is_unsupported());
            assert_ne!(is_refused, is_kept, "{policy:?}");
        }
        assert!(!subject.probe(lock.name()).held);
        let zero = LockOptions::new().replication(Replication::replicas(0));
        assert!(
            lock.try_lock_with(&zero).is_err(),
            "no replicas is `off`, and not a number"
        );
    }
}

/// A grant that too few replicas confirmed is an error and not "busy", and is rolled back before
/// the call returns.
pub(crate) fn insufficient_replicas_is_error_without_lock(subject: &dyn Subject) {
    let (name, replicas) = (fresh_name(), replicas(subject));
    let count = replicas.count();
    let off = LockOptions::new().replication(Replication::off());
    let _held_back = hold_back(replicas, 1);
    for on_insufficient_replicas in [OnInsufficientReplicas::Retry, OnInsufficientReplicas::Fail] {
        let lock = under(
            subject,
            &name,
            impatient(count).on_insufficient_replicas(on_insufficient_replicas),
        );
        let error = lock.try_lock().expect_err("one of them is missing");
        assert!(error.is_insufficient_replicas(), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("{} of {count}", count - 1)),
            "{error}"
        );
        assert!(!subject.probe(&name).held, "it is rolled back by now");
        drop(take_with(&lock, &off));
    }
    let lock = under(
        subject,
        &name,
        impatient(count).on_insufficient_replicas(OnInsufficientReplicas::Fail),
    );
    let error = lock
        .try_lock_for(long())
        .expect_err("it is not tried again");
    assert!(error.is_insufficient_replicas(), "{error}");
    assert!(!subject.probe(&name).held);
}

/// A waiter tries again while a replica is paused, and gets the lock after the replica resumes.
pub(crate) fn waiter_survives_insufficient_replicas(subject: &dyn Subject) {
    let (name, replicas) = (fresh_name(), replicas(subject));
    let lock = under(subject, &name, impatient(replicas.count()));
    let held_back = hold_back(replicas, 1);
    thread::scope(|scope| {
        let waiting = spawn(scope, || take_soon(&lock).unlock());
        // By now the lock was granted and rolled back at least once.
        let_pass(ms(700));
        assert!(!waiting.is_finished());
        drop(held_back);
        join(waiting).expect("it is ours");
    });
    assert!(!subject.probe(&name).held);
}

/// With a policy that accepts too few confirmations the lock is held, and events report the grant
/// and the renewals.
pub(crate) fn accepted_insufficient_replicas_emits_event(subject: &dyn Subject) {
    let (name, replicas) = (fresh_name(), replicas(subject));
    let count = replicas.count();
    let (tell, told) = mpsc::channel();
    let tell = Cell::new(tell);
    let handler = move |event: &Event| {
        if let Event::InsufficientReplicasAccepted {
            token,
            insufficient,
            ..
        } = event
        {
            let _sent = tell.lock().send((*token, *insufficient));
        }
    };
    let policy = impatient(count).on_insufficient_replicas(OnInsufficientReplicas::Accept);
    let builder = subject.client(&context()).events(Arc::new(handler));
    let lock = mutex(
        &connect(
            subject,
            builder.configure(|config| config.with_replication(policy)),
        ),
        &name,
    );
    let _held_back = hold_back(replicas, 1);
    let is_told = |what: &str, token| {
        let expected = (token, InsufficientReplicas::new(count - 1, count));
        let told = poll(patience(), || told.try_recv().ok());
        assert_eq!(told.expect(what), expected, "{what}");
    };
    // The lease is so long that it is not renewed in this case.
    let guard = take(&lock);
    is_told("the grant", guard.fencing_token());
    guard.unlock().expect("it is ours");
    let guard = take_with(&lock, &watched(ms(2_400)));
    is_told("the next grant", guard.fencing_token());
    is_told("a renewal", guard.fencing_token());
    stays_held(&guard, ms(2_400), ms(2_600), || subject.probe(&name).held);
    guard.unlock().expect("it is ours");
}

/// A lock of another holder is busy, whatever the replicas confirm.
pub(crate) fn busy_lock_with_policy_is_a_value(subject: &dyn Subject) {
    let ([holder], replicas) = (mutexes(subject), replicas(subject));
    let lock = under(subject, holder.name(), impatient(replicas.count()));
    // The holder uses no policy, even if the subject has a default policy.
    let off = LockOptions::new().replication(Replication::off());
    let _held_back = hold_back(replicas, replicas.count());
    let guard = take_with(&holder, &off);
    assert!(is_busy(&lock));
    assert!(
        lock.try_lock_for(ms(400))
            .expect("the store answers")
            .is_none()
    );
    guard.unlock().expect("it is ours");
}

/// A renewal that too few replicas confirm does not extend the guard: the guard is suspended, and
/// lost at the end of the last confirmed lease.
pub(crate) fn unconfirmed_renewals_end_in_loss(subject: &dyn Subject) {
    let (name, replicas) = (fresh_name(), replicas(subject));
    let lock = under(subject, &name, patient(replicas.count()));
    let guard = take_with(&lock, &watched(ms(1_500)));
    let _held_back = hold_back(replicas, 1);
    eventually("renewals are not confirmed", patience(), || {
        guard.state() == GuardState::Suspended
    });
    assert!(guard.is_valid(), "its deadline is ahead");
    let loss = loss(&guard.losses());
    assert_eq!(loss.cause(), LossCause::InsufficientReplicas);
    assert!(
        loss.last_failure()
            .is_some_and(|error| error.is_insufficient_replicas())
    );
    assert!(!guard.is_valid() && guard.unlock().expect_err("it is lost").is_lost());
    eventually("it is released", patience(), || !subject.probe(&name).held);
}

/// If a paused replica resumes within the lease, the next renewal restores the suspended guard.
pub(crate) fn renewal_confirmed_again_keeps_lock(subject: &dyn Subject) {
    let (name, replicas) = (fresh_name(), replicas(subject));
    let lock = under(subject, &name, patient(replicas.count()));
    let guard = take_with(&lock, &watched(ms(3_000)));
    let held_back = hold_back(replicas, 1);
    eventually("renewals are not confirmed", patience(), || {
        guard.state() == GuardState::Suspended
    });
    drop(held_back);
    eventually("they are again", patience(), || {
        guard.state() == GuardState::Held
    });
    stays_held(&guard, ms(3_000), ms(3_500), || subject.probe(&name).held);
    guard.unlock().expect("it is ours");
}

/// A grant whose reply was lost is repeated, and must be confirmed by replicas again.
pub(crate) fn grant_with_lost_reply_is_confirmed(subject: &dyn Subject) {
    let (name, replicas) = (fresh_name(), replicas(subject));
    let context = context();
    let network = FaultyBackend::on(subject.backend(&context));
    let policy = impatient(replicas.count()).on_insufficient_replicas(OnInsufficientReplicas::Fail);
    let builder = lock_core::builder()
        .clock(context.clock)
        .backend(Arc::clone(&network) as _);
    let lock = mutex(
        &connect(
            subject,
            builder.configure(|config| config.with_replication(policy)),
        ),
        &name,
    );
    let held_back = hold_back(replicas, 1);
    network.lose_acquire_answers(1);
    let error = lock
        .try_lock_for(patience())
        .expect_err("one of them is missing");
    assert!(error.is_insufficient_replicas(), "{error}");
    eventually("it is rolled back", patience(), || {
        !subject.probe(&name).held
    });
    drop(held_back);
    network.lose_acquire_answers(1);
    take_soon(&lock).unlock().expect("it is ours");
    drop(take(&mutex(&client(subject), &name)));
}
