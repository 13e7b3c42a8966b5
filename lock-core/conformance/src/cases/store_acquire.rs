//! The contract of [`Backend::acquire`](lock_core::Backend::acquire), tested by direct calls.

use crate::fixture::{
    DirectBackend, assert_within, eventually, fresh_name, grant, let_pass, long, ms, named, now,
    patience, prompt, short,
};
use crate::late;
use crate::subject::Subject;
use lock_core::backend::{Answer, Release, ReleaseOptions, RetryCause};

/// A free name is granted; a held name is answered with `Busy`, which is no failure.
pub(crate) fn acquire_grants_free_name_and_refuses_held(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    assert!(!subject.probe(&name).held);
    let owner = direct.hold(&name, long());
    assert!(subject.probe(&name).held);
    assert!(direct.is_busy(&name));
    assert!(
        DirectBackend::open(subject).is_busy(&name),
        "for another client, too"
    );
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    direct.hold(&name, short());
}

/// The lease in the store is the requested one: not longer, and hardly shorter.
pub(crate) fn granted_lease_is_as_long_as_asked(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    direct.hold(&name, ms(10_000));
    let left = subject.probe(&name).remaining.expect("it has a lease");
    assert!(
        left <= ms(10_001) && left > ms(8_000),
        "{left:?} of 10 s are left"
    );
}

/// The lock of an owner that no longer exists is free when its lease ends, and not before.
pub(crate) fn abandoned_lock_is_free_after_lease(subject: &dyn Subject) {
    let name = fresh_name();
    let start = now();
    DirectBackend::open(subject).hold(&name, short());
    let other = DirectBackend::open(subject);
    eventually(
        "the abandoned lock is granted to another",
        patience(),
        || !other.is_busy(&name),
    );
    assert!(
        now().since(start) >= short(),
        "taken over after {:?}",
        now().since(start)
    );
}

/// A busy answer names the holder's remaining lease, by which waiters poll, or no time.
pub(crate) fn busy_answer_tells_remaining_lease(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    direct.hold(&name, ms(10_000));
    let is_right = |left| left <= ms(10_001) && left > ms(8_000);
    // The answer to a caller that waits may name a shorter time, to have it try again sooner.
    let later = direct.acquire(&name, direct.owner(), short());
    assert!(
        !matches!(later, Answer::Busy(Some(left)) if left > ms(10_001)),
        "{later:?}"
    );
    match direct.try_once(&name, direct.owner(), short()) {
        // A store need not return the remaining lease, but must not return another time.
        Answer::Busy(left) => {
            assert!(left.is_none_or(is_right), "{left:?} of 10 s are left");
        }
        Answer::Retry {
            cause: RetryCause::Held,
            after: left,
            ..
        } => assert!(left.is_none_or(is_right), "{left:?}"),
        other => panic!("a held lock: {other:?}"),
    }
}

/// An attempt is answered at once, whether the lock is free or not: the engine waits, not the
/// store.
pub(crate) fn acquire_never_waits(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    direct.hold(&name, long());
    let start = now();
    assert!(direct.is_busy(&name));
    assert_within("answered", now().since(start), prompt() / 2);
}

/// A repeated attempt of the same owner, after a lost reply, is granted again. One release frees
/// the lock.
pub(crate) fn repeated_attempt_is_the_same_grant(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    for _ in 0..3 {
        direct.granted(&name, owner, long());
    }
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    assert!(
        !subject.probe(&name).held,
        "one release ends it, however often it was sent"
    );
    direct.hold(&name, short());
}

/// A repeated attempt has the token of the first attempt.
pub(crate) fn repeated_attempt_keeps_token(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.owner();
    let first = direct
        .granted(&name, owner, long())
        .tokens
        .expect("tokens")
        .first();
    for _ in 0..3 {
        let again = direct
            .granted(&name, owner, long())
            .tokens
            .expect("tokens")
            .first();
        assert_eq!(again, first);
    }
}

/// A repeated attempt starts a full lease: the engine counts from the attempt that was answered.
pub(crate) fn repeated_attempt_has_full_lease(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, ms(1_000));
    let_pass(ms(400));
    direct.granted(&name, owner, ms(1_000));
    let left = subject.probe(&name).remaining.expect("it has a lease");
    assert!(left > ms(700), "{left:?} of 1 s are left");
}

/// A repeated attempt with a shorter lease keeps the longer lease: a late copy may arrive after a
/// renewal.
pub(crate) fn repeated_attempt_never_shortens_lease(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, ms(10_000));
    direct.granted(&name, owner, short());
    let left = subject.probe(&name).remaining.expect("it has a lease");
    assert!(left > ms(8_000), "{left:?} of 10 s are left");
}

/// Similar names are different locks.
pub(crate) fn names_do_not_collide(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
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
    let names = alike.map(|name| lock_core::LockName::new(&name).expect("well formed"));
    let owners = names.each_ref().map(|name| direct.hold(name, long()));
    for (name, owner) in names.iter().zip(owners) {
        assert!(direct.is_busy(name), "{name:?} is held");
        assert_eq!(
            direct.release(name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
            Release::Freed,
            "{name:?}"
        );
        assert!(!subject.probe(name).held, "{name:?} is free");
    }
}

/// After a release with a tombstone, an attempt of the same owner is refused: it can only be a late
/// copy.
pub(crate) fn owner_with_tombstone_is_refused(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    assert_eq!(
        direct.release_with_tombstone(&name, owner, long()),
        Release::Freed
    );
    assert!(!subject.probe(&name).held);
    refuses(&direct, &name, owner, subject);
}

/// A release with a tombstone stores the tombstone even if its owner does not hold the lock: before
/// the owner's attempt arrives, or after an earlier release.
pub(crate) fn tombstone_is_left_for_owner_without_lock(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (early, gone) = (direct.owner(), direct.hold(&name, long()));
    assert_eq!(
        direct.release(&name, gone, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    for owner in [early, gone] {
        assert_eq!(
            direct.release_with_tombstone(&name, owner, long()),
            Release::Gone
        );
        refuses(&direct, &name, owner, subject);
    }
}

/// A tombstone lasts for one lease, because a late attempt could hold the lock for that time.
pub(crate) fn tombstone_lasts_for_one_lease(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.owner();
    let lease = ms(1_000);
    let closed = direct.clock.now();
    assert_eq!(
        direct.release_with_tombstone(&name, owner, lease),
        Release::Gone
    );
    let_pass(lease * 7 / 10);
    let answer = direct.acquire(&name, owner, short());
    if !answer.is_busy() && direct.clock.now().since(closed) >= lease {
        late(lease, "the tombstone was over before it was looked at");
    }
    assert_refused(&answer);
    assert!(!subject.probe(&name).held, "and nothing is left of it");
}

/// A tombstone refuses its own owner only.
pub(crate) fn tombstone_blocks_only_its_owner(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    assert_eq!(
        direct.release_with_tombstone(&name, owner, long()),
        Release::Freed
    );
    let next = direct.owner();
    grant(direct.acquire(&name, next, long()));
    refuses_only(&direct, &name, owner);
    assert_eq!(
        direct.release(&name, next, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
}

fn refuses(
    direct: &DirectBackend,
    name: &lock_core::LockName,
    owner: lock_core::OwnerId,
    subject: &dyn Subject,
) {
    refuses_only(direct, name, owner);
    assert!(!subject.probe(name).held, "and nothing is left of it");
}

fn refuses_only(direct: &DirectBackend, name: &lock_core::LockName, owner: lock_core::OwnerId) {
    assert_refused(&direct.acquire(name, owner, short()));
}

fn assert_refused(answer: &Answer) {
    assert!(answer.is_busy(), "a closed owner was granted the lock");
}
