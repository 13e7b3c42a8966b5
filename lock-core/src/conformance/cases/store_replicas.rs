//! The contract of a store with replicas ([`Replication`]), asked for directly.

use super::store_renew::hold_many;
use crate::backend::{Answer, Attempt, Release, ReleaseOptions, Renewal};
use crate::conformance::fixture::{
    Line, eventually, fell_short, fresh_name, grant, hold_back, impatient, in_time, join, let_pass,
    long, ms, now, patience, patient, prompt, replicas, short, spawn,
};
use crate::conformance::subject::Subject;
use crate::lease::LeaseTime;
use crate::replication::{InsufficientReplicas, Replication};
use std::thread;

/// What is granted under a policy is on as many replicas as it asks for when the answer comes.
pub(crate) fn confirmed_grant_is_on_replicas(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let owner = line.owner();
    grant(line.confirmed(&name, owner, long(), patient(replicas.count())));
    for number in 0..replicas.count() {
        assert!(replicas.probe(number, &name).held, "replica {number}");
    }
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
}

/// With one replica too few the store has granted the lock all the same, with its token, and says
/// what is missing.
pub(crate) fn grant_without_enough_replicas_is_reported(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let (count, _held_back) = (replicas.count(), hold_back(replicas, 1));
    let owner = line.owner();
    let (granted, insufficient) =
        fell_short(line.confirmed(&name, owner, long(), impatient(count)));
    assert_eq!(insufficient, InsufficientReplicas::new(count - 1, count));
    assert!(granted.tokens.is_some() && subject.probe(&name).held);
    assert!(line.is_busy(&name), "for everybody else");
    assert_eq!(line.renew(&name, owner, long()), Renewal::Extended);
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
}

/// It can be released as any other, and nothing of it is left: not in the store, and not on
/// replicas that had it, or get it late.
pub(crate) fn unconfirmed_grant_is_released_everywhere(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let held_back = hold_back(replicas, 1);
    let owner = line.owner();
    let (granted, _) =
        fell_short(line.confirmed(&name, owner, long(), impatient(replicas.count())));
    let token = granted.tokens.expect("tokens").first();
    let closing = ReleaseOptions::WITHOUT_TOMBSTONE.last_used(token);
    assert_eq!(line.release(&name, owner, closing), Release::Freed);
    assert!(!subject.probe(&name).held);
    drop(held_back);
    for number in 0..replicas.count() {
        let is_free = || !replicas.probe(number, &name).held;
        eventually("replicas have nothing of it, either", patience(), is_free);
    }
    let next = grant(line.confirmed(&name, line.owner(), short(), patient(replicas.count())));
    assert!(next.tokens.expect("tokens").first() > token);
}

/// However many confirm, that is the number told. Connected are all of them.
pub(crate) fn reported_count_is_confirming_replicas(subject: &dyn Subject) {
    let (line, replicas) = (Line::open(subject), replicas(subject));
    let more = Replication::replicas(replicas.count() + 1).timeout(ms(600));
    for missing in 0..=replicas.count() {
        let (name, owner, _held_back) = (fresh_name(), line.owner(), hold_back(replicas, missing));
        let (_, insufficient) = fell_short(line.confirmed(&name, owner, long(), more));
        let told = InsufficientReplicas::new(replicas.count() - missing, replicas.count() + 1);
        assert_eq!(insufficient, told, "with {missing} held back");
        line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE);
    }
}

/// The same owner asks again, and the store finds it as it should be and has nothing to write:
/// replicas are asked all the same.
pub(crate) fn repeated_attempt_is_confirmed_again(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let count = replicas.count();
    let held_back = hold_back(replicas, 1);
    let owner = line.owner();
    let first = line.granted(&name, owner, long());
    let again = || line.confirmed(&name, owner, ms(5_000), impatient(count));
    let (second, _) = fell_short(again());
    let (third, insufficient) = fell_short(again());
    assert_eq!(insufficient, InsufficientReplicas::new(count - 1, count));
    drop(held_back);
    let fourth = grant(line.confirmed(&name, owner, ms(5_000), patient(count)));
    for repeated in [second, third, fourth] {
        assert_eq!(repeated.tokens, first.tokens);
    }
    assert!((0..count).all(|number| replicas.probe(number, &name).held));
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
}

/// That somebody else has it needs no confirmation, and nobody's absence makes a failure of it.
pub(crate) fn busy_answer_needs_no_replicas(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let owner = line.hold(&name, long());
    let _held_back = hold_back(replicas, replicas.count());
    let answer = line.confirmed(&name, line.owner(), short(), impatient(1));
    assert!(matches!(answer, Answer::Busy(_)), "{answer:?}");
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
}

/// A renewal that too few replicas have says so; in the store it has extended the lease.
pub(crate) fn unconfirmed_renewal_is_reported(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let count = replicas.count();
    let held = [(name.clone(), line.hold(&name, ms(5_000)))];
    let held_back = hold_back(replicas, 1);
    let renewals = line.renew_confirmed(&held, &[impatient(count)], long());
    assert_eq!(renewals, [Renewal::Unacknowledged(InsufficientReplicas::new(count - 1, count))]);
    let left = subject.probe(&name).remaining.expect("it has a lease");
    assert!(left > ms(10_000), "{left:?} of 60 s are left");
    drop(held_back);
    assert_eq!(line.renew_confirmed(&held, &[patient(count)], long()), [Renewal::Extended]);
    let left = replicas.probe(0, &name).remaining.expect("it has a lease");
    assert!(left > ms(10_000), "{left:?} of 60 s are left on a replica");
}

/// A renewal that finds a longer lease has nothing to write: replicas are asked all the same.
pub(crate) fn renewal_without_change_is_confirmed(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let count = replicas.count();
    let _held_back = hold_back(replicas, 1);
    let held = [(name.clone(), line.hold(&name, long()))];
    for _ in 0..2 {
        let renewals = line.renew_confirmed(&held, &[impatient(count)], ms(5_000));
        assert_eq!(
            renewals,
            [Renewal::Unacknowledged(InsufficientReplicas::new(count - 1, count))]
        );
    }
}

/// In a batch, each is confirmed as its own policy asks, and what is gone is gone.
pub(crate) fn batch_confirms_each_lock_independently(subject: &dyn Subject) {
    let (line, replicas) = (Line::open(subject), replicas(subject));
    let count = replicas.count();
    let held = hold_many(&line, 5, long());
    subject.lose(&held[3].0);
    let _held_back = hold_back(replicas, 1);
    // As many as there are yet; without any, nobody is asked.
    let kept = if count > 1 { impatient(count - 1) } else { Replication::off() };
    let all = impatient(count);
    let renewals = line.renew_confirmed(&held, &[Replication::off(), all, kept, all, all], long());
    let missing = Renewal::Unacknowledged(InsufficientReplicas::new(count - 1, count));
    let expected = [Renewal::Extended, missing, Renewal::Extended, Renewal::Gone, missing];
    assert_eq!(renewals, expected);
}

/// Who asks for no replicas does not wait for them, neither for a grant nor for a renewal.
pub(crate) fn request_without_policy_asks_no_replica(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let _held_back = hold_back(replicas, replicas.count());
    let start = now();
    let owner = line.hold(&name, long());
    assert_eq!(line.renew(&name, owner, long()), Renewal::Extended);
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    in_time("answered", now().since(start), prompt() / 2);
}

/// A replica that is behind, and catches up within its time, is waited for.
pub(crate) fn late_replica_within_timeout_is_awaited(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let policy = patient(replicas.count());
    replicas.hold_back(1);
    let answer = thread::scope(|scope| {
        let asking = spawn(scope, || line.confirmed(&name, line.owner(), long(), policy));
        eventually("the store has granted it", patience(), || subject.probe(&name).held);
        let_pass(ms(100));
        replicas.hold_back(0);
        join(asking)
    });
    let _grant = grant(answer);
}

/// The call ends by its deadline, however long its policy would wait.
pub(crate) fn replica_wait_ends_at_call_deadline(subject: &dyn Subject) {
    let (line, name, replicas) = (Line::open(subject), fresh_name(), replicas(subject));
    let _held_back = hold_back(replicas, replicas.count());
    let lease = LeaseTime::new(long()).expect("a lease of ordinary length");
    let policy = Replication::replicas(1).timeout(ms(5_000));
    let owner = line.owner();
    let attempt = Attempt::new(&name, owner, lease).replication(policy);
    let start = now();
    let answer = line.ask(&attempt, start + ms(800));
    in_time("answered", now().since(start), prompt());
    assert!(!matches!(answer, Ok(Answer::Granted(_))), "nobody confirmed it");
    line.bury(&name, owner, long());
    assert!(!subject.probe(&name).held);
}

/// "All" are those that should be there, not those that are.
pub(crate) fn all_replicas_means_every_listed_one(subject: &dyn Subject) {
    let (line, replicas) = (Line::open(subject), replicas(subject));
    let count = replicas.count();
    for missing in 1..=count {
        let (name, owner, _held_back) = (fresh_name(), line.owner(), hold_back(replicas, missing));
        let policy = Replication::all().timeout(ms(300));
        let (_, insufficient) = fell_short(line.confirmed(&name, owner, long(), policy));
        assert_eq!(insufficient, InsufficientReplicas::new(count - missing, count));
        line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE);
    }
    let policy = Replication::all().timeout(ms(1_100));
    let _grant = grant(line.confirmed(&fresh_name(), line.owner(), short(), policy));
}
