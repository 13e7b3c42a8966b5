//! The contract of [`Backend::acquire`](crate::Backend::acquire), asked for directly.

use crate::backend::{Answer, Release, ReleaseOptions, RollbackCause};
use crate::conformance::fixture::{
    Line, eventually, fresh_name, grant, in_time, let_pass, long, ms, named, now, patience, prompt,
    short,
};
use crate::conformance::subject::Subject;

/// A free name is granted; a held one is answered with `Busy`, which is no failure.
pub(crate) fn acquire_grants_free_name_and_refuses_held(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    assert!(!subject.probe(&name).held);
    let owner = line.hold(&name, long());
    assert!(subject.probe(&name).held);
    assert!(line.is_busy(&name));
    assert!(Line::open(subject).is_busy(&name), "for another client, too");
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    line.hold(&name, short());
}

/// The lease in the store is the one that was asked for: not longer, and hardly shorter.
pub(crate) fn granted_lease_is_as_long_as_asked(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    line.hold(&name, ms(10_000));
    let left = subject.probe(&name).remaining.expect("it has a lease");
    assert!(left <= ms(10_001) && left > ms(8_000), "{left:?} of 10 s are left");
}

/// An owner that never comes back is forgotten when its lease ends, and not before.
pub(crate) fn abandoned_lock_is_free_after_lease(subject: &dyn Subject) {
    let name = fresh_name();
    let start = now();
    Line::open(subject).hold(&name, short());
    let other = Line::open(subject);
    eventually("the abandoned lock is granted to another", patience(), || !other.is_busy(&name));
    assert!(now().since(start) >= short(), "taken over after {:?}", now().since(start));
}

/// `Busy` says how long the holder's lease runs yet, so that waiters know when to look again.
pub(crate) fn busy_answer_tells_remaining_lease(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    line.hold(&name, ms(10_000));
    let is_right = |left| left <= ms(10_001) && left > ms(8_000);
    match line.acquire(&name, line.owner(), short()) {
        // A store that cannot say is allowed to say nothing, but not to say something else.
        Answer::Busy(left) => {
            assert!(left.is_none_or(is_right), "{left:?} of 10 s are left");
        }
        Answer::RolledBack(RollbackCause::Held(left)) => {
            assert!(left.is_none_or(is_right), "{left:?}");
        }
        other => panic!("a held lock: {other:?}"),
    }
}

/// An attempt is answered at once, whether the lock is free or not: waiting is the engine's part.
pub(crate) fn acquire_never_waits(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    line.hold(&name, long());
    let start = now();
    assert!(line.is_busy(&name));
    in_time("answered", now().since(start), prompt() / 2);
}

/// The same owner asks again, because the answer was lost: it is granted, and counted once.
pub(crate) fn repeated_attempt_is_the_same_grant(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    for _ in 0..3 {
        line.granted(&name, owner, long());
    }
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    assert!(!subject.probe(&name).held, "one release ends it, however often it was sent");
    line.hold(&name, short());
}

/// A repeated attempt carries the token of the first.
pub(crate) fn repeated_attempt_keeps_token(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.owner();
    let first = line.granted(&name, owner, long()).tokens.expect("tokens").first();
    for _ in 0..3 {
        let again = line.granted(&name, owner, long()).tokens.expect("tokens").first();
        assert_eq!(again, first);
    }
}

/// When a repeated attempt is granted, a full lease is left: the engine counts from the send that
/// was answered.
pub(crate) fn repeated_attempt_has_full_lease(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, ms(1_000));
    let_pass(ms(400));
    line.granted(&name, owner, ms(1_000));
    let left = subject.probe(&name).remaining.expect("it has a lease");
    assert!(left > ms(700), "{left:?} of 1 s are left");
}

/// A repeated attempt with a shorter lease leaves the longer one: a late copy may arrive after a
/// renewal.
pub(crate) fn repeated_attempt_never_shortens_lease(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, ms(10_000));
    line.granted(&name, owner, short());
    let left = subject.probe(&name).remaining.expect("it has a lease");
    assert!(left > ms(8_000), "{left:?} of 10 s are left");
}

/// Names that are alike are different locks.
pub(crate) fn names_do_not_collide(subject: &dyn Subject) {
    let line = Line::open(subject);
    let base = named("").to_string();
    let alike = [
        base.clone(),
        format!("{base} "),
        format!(" {base}"),
        format!("{base}:"),
        format!("{base}:x"),
        format!("{base}X"),
        format!("{base}x"),
        format!("{{{base}}}"),
        format!("{{{base}}}:x"),
        format!("x:{{{base}}}"),
        format!("{base}\n"),
        format!("{base}ü"),
        format!("{base}*"),
        format!("{base}?"),
    ];
    let names = alike.map(|name| crate::LockName::new(&name).expect("well formed"));
    let owners = names.each_ref().map(|name| line.hold(name, long()));
    for (name, owner) in names.iter().zip(owners) {
        assert!(line.is_busy(name), "{name:?} is held");
        assert_eq!(
            line.release(name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
            Release::Freed,
            "{name:?}"
        );
        assert!(!subject.probe(name).held, "{name:?} is free");
    }
}

/// A closed owner is turned down, although it held the lock, used it and gave it back: what arrives
/// late is a copy.
pub(crate) fn owner_with_tombstone_is_refused(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    assert_eq!(line.bury(&name, owner, long()), Release::Freed);
    assert!(!subject.probe(&name).held);
    refuses(&line, &name, owner, subject);
}

/// An owner may be closed before its attempt arrives, or after it was released: it holds nothing,
/// and stays closed.
pub(crate) fn tombstone_is_left_for_owner_without_lock(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let (early, gone) = (line.owner(), line.hold(&name, long()));
    assert_eq!(line.release(&name, gone, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    for owner in [early, gone] {
        assert_eq!(line.bury(&name, owner, long()), Release::Gone);
        refuses(&line, &name, owner, subject);
    }
}

/// A tombstone lives for a lease: as long as a late attempt could hold the lock.
pub(crate) fn tombstone_lasts_for_one_lease(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.owner();
    let lease = ms(1_000);
    assert_eq!(line.bury(&name, owner, lease), Release::Gone);
    let_pass(lease * 7 / 10);
    refuses(&line, &name, owner, subject);
}

/// A tombstone turns down its owner and nobody else.
pub(crate) fn tombstone_blocks_only_its_owner(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    assert_eq!(line.bury(&name, owner, long()), Release::Freed);
    let next = line.owner();
    grant(line.acquire(&name, next, long()));
    refuses_only(&line, &name, owner);
    assert_eq!(line.release(&name, next, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
}

fn refuses(line: &Line, name: &crate::LockName, owner: crate::OwnerId, subject: &dyn Subject) {
    refuses_only(line, name, owner);
    assert!(!subject.probe(name).held, "and nothing is left of it");
}

fn refuses_only(line: &Line, name: &crate::LockName, owner: crate::OwnerId) {
    let answer = line.acquire(name, owner, short());
    assert!(answer.is_busy(), "a closed owner was granted the lock");
}
