//! The contract of a store with replicas ([`Replication`]), tested by direct calls.

use super::store_renew::hold_many;
use crate::fixture::{
    DirectBackend, assert_within, eventually, fresh_name, grant, hold_back, impatient, join,
    let_pass, long, ms, now, patience, patient, prompt, replicas, short, spawn, unacknowledged,
};
use crate::subject::Subject;
use lock_core::backend::{Answer, Attempt, Release, ReleaseOptions, Renewal};
use lock_core::{InsufficientReplicas, LeaseTime, Replication};
use std::thread;

/// When the answer arrives, a grant under a policy is on as many replicas as the policy requires.
pub(crate) fn confirmed_grant_is_on_replicas(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let owner = direct.owner();
    grant(direct.confirmed(&name, owner, long(), patient(replicas.count())));
    for number in 0..replicas.count() {
        assert!(replicas.probe(number, &name).held, "replica {number}");
    }
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
}

/// If one confirmation is missing, the store has granted the lock with its token, and reports the
/// number of confirmations.
pub(crate) fn grant_without_enough_replicas_is_reported(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let (count, _held_back) = (replicas.count(), hold_back(replicas, 1));
    let owner = direct.owner();
    let (granted, insufficient) =
        unacknowledged(direct.confirmed(&name, owner, long(), impatient(count)));
    assert_eq!(insufficient, InsufficientReplicas::new(count - 1, count));
    assert!(granted.tokens.is_some() && subject.probe(&name).held);
    assert!(direct.is_busy(&name), "for other owners");
    assert_eq!(direct.renew(&name, owner, long()), Renewal::Extended);
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
}

/// An unconfirmed grant can be released like any other grant, in the store and on all replicas.
pub(crate) fn unconfirmed_grant_is_released_everywhere(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let held_back = hold_back(replicas, 1);
    let owner = direct.owner();
    let (granted, _) =
        unacknowledged(direct.confirmed(&name, owner, long(), impatient(replicas.count())));
    let token = granted.tokens.expect("tokens").first();
    let options = ReleaseOptions::WITHOUT_TOMBSTONE.last_used(token);
    assert_eq!(direct.release(&name, owner, options), Release::Freed);
    assert!(!subject.probe(&name).held);
    drop(held_back);
    for number in 0..replicas.count() {
        let is_free = || !replicas.probe(number, &name).held;
        eventually("replicas have nothing of it, either", patience(), is_free);
    }
    let next = grant(direct.confirmed(&name, direct.owner(), short(), patient(replicas.count())));
    assert!(next.tokens.expect("tokens").first() > token);
}

/// The reported number counts the replicas that confirmed, and not all connected replicas.
pub(crate) fn reported_count_is_confirming_replicas(subject: &dyn Subject) {
    let (direct, replicas) = (DirectBackend::open(subject), replicas(subject));
    let more = Replication::replicas(replicas.count() + 1).timeout(ms(600));
    for missing in 0..=replicas.count() {
        let (name, owner, _held_back) =
            (fresh_name(), direct.owner(), hold_back(replicas, missing));
        let (_, insufficient) = unacknowledged(direct.confirmed(&name, owner, long(), more));
        let told = InsufficientReplicas::new(replicas.count() - missing, replicas.count() + 1);
        assert_eq!(insufficient, told, "with {missing} held back");
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE);
    }
}

/// A repeated attempt, for which the store has nothing to write, is confirmed by replicas again.
pub(crate) fn repeated_attempt_is_confirmed_again(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let count = replicas.count();
    let held_back = hold_back(replicas, 1);
    let owner = direct.owner();
    let first = direct.granted(&name, owner, long());
    let again = || direct.confirmed(&name, owner, ms(5_000), impatient(count));
    let (second, _) = unacknowledged(again());
    let (third, insufficient) = unacknowledged(again());
    assert_eq!(insufficient, InsufficientReplicas::new(count - 1, count));
    drop(held_back);
    let fourth = grant(direct.confirmed(&name, owner, ms(5_000), patient(count)));
    for repeated in [second, third, fourth] {
        assert_eq!(repeated.tokens, first.tokens);
    }
    assert!((0..count).all(|number| replicas.probe(number, &name).held));
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
}

/// A busy answer needs no confirmation, and does not fail while all replicas are paused.
pub(crate) fn busy_answer_needs_no_replicas(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let owner = direct.hold(&name, long());
    let _held_back = hold_back(replicas, replicas.count());
    let answer = direct.confirmed(&name, direct.owner(), short(), impatient(1));
    assert!(matches!(answer, Answer::Busy(_)), "{answer:?}");
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
}

/// A renewal that too few replicas confirm is reported as such. In the store it has extended the
/// lease.
pub(crate) fn unconfirmed_renewal_is_reported(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let count = replicas.count();
    let held = [(name.clone(), direct.hold(&name, ms(5_000)))];
    let held_back = hold_back(replicas, 1);
    let renewals = direct.renew_confirmed(&held, &[impatient(count)], long());
    assert_eq!(
        renewals,
        [Renewal::Unacknowledged(InsufficientReplicas::new(
            count - 1,
            count
        ))]
    );
    let left = subject.probe(&name).remaining.expect("it has a lease");
    assert!(left > ms(10_000), "{left:?} of 60 s are left");
    drop(held_back);
    assert_eq!(
        direct.renew_confirmed(&held, &[patient(count)], long()),
        [Renewal::Extended]
    );
    let left = replicas.probe(0, &name).remaining.expect("it has a lease");
    assert!(left > ms(10_000), "{left:?} of 60 s are left on a replica");
}

/// A renewal that finds a longer lease, and writes nothing, is confirmed by replicas as well.
pub(crate) fn renewal_without_change_is_confirmed(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let count = replicas.count();
    let _held_back = hold_back(replicas, 1);
    let held = [(name.clone(), direct.hold(&name, long()))];
    for _ in 0..2 {
        let renewals = direct.renew_confirmed(&held, &[impatient(count)], ms(5_000));
        assert_eq!(
            renewals,
            [Renewal::Unacknowledged(InsufficientReplicas::new(
                count - 1,
                count
            ))]
        );
    }
}

/// In a batch, each lock is confirmed under its own policy, and a lost lock is `Gone`.
pub(crate) fn batch_confirms_each_lock_independently(subject: &dyn Subject) {
    let (direct, replicas) = (DirectBackend::open(subject), replicas(subject));
    let count = replicas.count();
    let held = hold_many(&direct, 5, long());
    subject.lose(&held[3].0);
    let _held_back = hold_back(replicas, 1);
    // A policy that requires as many replicas as still confirm, or no policy if none confirms.
    let kept = if count > 1 {
        impatient(count - 1)
    } else {
        Replication::off()
    };
    let all = impatient(count);
    let renewals =
        direct.renew_confirmed(&held, &[Replication::off(), all, kept, all, all], long());
    let missing = Renewal::Unacknowledged(InsufficientReplicas::new(count - 1, count));
    let expected = [
        Renewal::Extended,
        missing,
        Renewal::Extended,
        Renewal::Gone,
        missing,
    ];
    assert_eq!(renewals, expected);
}

/// A grant and a renewal without a policy do not wait for replicas.
pub(crate) fn request_without_policy_asks_no_replica(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let _held_back = hold_back(replicas, replicas.count());
    let start = now();
    let owner = direct.hold(&name, long());
    assert_eq!(direct.renew(&name, owner, long()), Renewal::Extended);
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    assert_within("answered", now().since(start), prompt() / 2);
}

/// A replica that catches up within the timeout is awaited.
pub(crate) fn late_replica_within_timeout_is_awaited(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let policy = patient(replicas.count());
    replicas.hold_back(1);
    let answer = thread::scope(|scope| {
        let asking = spawn(scope, || {
            direct.confirmed(&name, direct.owner(), long(), policy)
        });
        eventually("the store has granted it", patience(), || {
            subject.probe(&name).held
        });
        let_pass(ms(100));
        replicas.hold_back(0);
        join(asking)
    });
    let _grant = grant(answer);
}

/// The call ends by its deadline, whatever the timeout of its policy.
pub(crate) fn replica_wait_ends_at_call_deadline(subject: &dyn Subject) {
    let (direct, name, replicas) = (
        DirectBackend::open(subject),
        fresh_name(),
        replicas(subject),
    );
    let _held_back = hold_back(replicas, replicas.count());
    let lease = LeaseTime::new(long()).expect("a lease of ordinary length");
    let policy = Replication::replicas(1).timeout(ms(5_000));
    let owner = direct.owner();
    let attempt = Attempt::new(&name, owner, lease).replication(policy);
    let start = now();
    let answer = direct.ask(&attempt, start + ms(800));
    assert_within("answered", now().since(start), prompt());
    assert!(
        !matches!(answer, Ok(Answer::Granted(_))),
        "no replica confirmed it"
    );
    direct.release_with_tombstone(&name, owner, long());
    assert!(!subject.probe(&name).held);
}

/// "All" means every replica that should exist, and not every replica that confirms.
pub(crate) fn all_replicas_means_every_listed_one(subject: &dyn Subject) {
    let (direct, replicas) = (DirectBackend::open(subject), replicas(subject));
    let count = replicas.count();
    for missing in 1..=count {
        let (name, owner, _held_back) =
            (fresh_name(), direct.owner(), hold_back(replicas, missing));
        let policy = Replication::all().timeout(ms(300));
        let (_, insufficient) = unacknowledged(direct.confirmed(&name, owner, long(), policy));
        assert_eq!(
            insufficient,
            InsufficientReplicas::new(count - missing, count)
        );
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE);
    }
    let policy = Replication::all().timeout(ms(1_100));
    let _grant = grant(direct.confirmed(&fresh_name(), direct.owner(), short(), policy));
}
