//! The contract of [`Backend::release`](lock_core::Backend::release),
//! [`inspect`](lock_core::Backend::inspect) and
//! [`force_release`](lock_core::backend::Admin::force_release), tested by direct calls.

use crate::fixture::{DirectBackend, eventually, fresh_name, let_pass, long, ms, patience, short};
use crate::subject::Subject;
use crate::violation::violated_unless;
use lock_core::backend::{LockInfo, Release, ReleaseOptions, Renewal};

/// A release frees its owner's lock and returns `Freed`.
pub(crate) fn release_frees_lock_and_reports_it(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    assert!(!subject.probe(&name).held);
    assert!(!direct.is_busy(&name));
}

/// A release that is repeated after a lost reply returns `Gone` and changes nothing.
pub(crate) fn repeated_release_reports_gone(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Gone
    );
    let next = direct.hold(&name, long());
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Gone
    );
    assert_eq!(
        direct.release_with_tombstone(&name, owner, short()),
        Release::Gone
    );
    violated_unless(
        subject.probe(&name).held,
        "a late release freed its successor's lock",
    );
    assert_eq!(
        direct.release(&name, next, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
}

/// A release by an owner that does not hold the lock returns `Gone`, and the holder keeps it.
pub(crate) fn release_by_other_owner_is_refused(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    assert_eq!(
        direct.release(&name, direct.owner(), ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Gone
    );
    let other = DirectBackend::open(subject);
    assert_eq!(
        other.release_with_tombstone(&name, other.owner(), short()),
        Release::Gone
    );
    violated_unless(subject.probe(&name).held, "another owner freed the lock");
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
}

/// A release after the end of the lease returns `Gone`.
pub(crate) fn release_after_lease_end_reports_gone(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, short());
    eventually("the lease ends", patience(), || !subject.probe(&name).held);
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Gone
    );
}

/// A release with a tombstone frees the lock and wakes waiters like any other release.
pub(crate) fn release_with_tombstone_frees_lock(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    let (wakes, _watch) = direct.watch(&name);
    assert_eq!(
        direct.release_with_tombstone(&name, owner, long()),
        Release::Freed
    );
    assert!(!subject.probe(&name).held);
    assert!(wakes.is_woken_within(patience()), "watchers are woken");
    direct.hold(&name, short());
}

/// A release with a minimum hold wakes the waiters, and passes the lock to an owner that no client
/// uses. Late renewals and releases of the former owner do not affect the lock, which is free when
/// the minimum hold ends.
pub(crate) fn kept_lock_has_no_holder(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    let (wakes, _watch) = direct.waits_for(&name);
    assert_eq!(
        direct.keep(&name, owner, (direct.owner(), long())),
        Release::Freed
    );
    assert!(wakes.is_woken_within(patience()), "watchers are woken");
    violated_unless(direct.is_busy(&name), "a lock that is kept was granted");
    assert_eq!(direct.renew(&name, owner, long() * 2), Renewal::Gone);
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Gone
    );
    violated_unless(
        subject.probe(&name).held,
        "a late release freed a lock that is kept",
    );
    let name = fresh_name();
    let owner = direct.hold(&name, long());
    assert_eq!(
        direct.keep(&name, owner, (direct.owner(), short())),
        Release::Freed
    );
    eventually("the lease ends", patience(), || !subject.probe(&name).held);
    direct.hold_soon(&name, short());
}

/// If a release with a minimum hold is repeated after a lost reply, it returns `Freed` again, and
/// does not prolong the hold. A repetition with another new owner returns `Gone`.
pub(crate) fn repeated_keeping_release_reports_the_same(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (owner, kept) = (direct.hold(&name, long()), direct.owner());
    assert_eq!(direct.keep(&name, owner, (kept, long())), Release::Freed);
    assert_eq!(
        direct.keep(&name, owner, (kept, long() * 2)),
        Release::Freed
    );
    let left = subject
        .probe(&name)
        .remaining
        .expect("it is held, and has a lease");
    assert!(left <= long() + ms(1), "{left:?} are left of {:?}", long());
    assert_eq!(
        direct.keep(&name, owner, (direct.owner(), long())),
        Release::Gone
    );
}

/// `inspect` changes neither the holder nor the lease.
pub(crate) fn inspect_changes_nothing(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    assert_eq!(direct.inspect(&name), LockInfo::FREE);
    assert!(!subject.probe(&name).held, "a free lock stays free");
    let owner = direct.hold(&name, ms(1_000));
    let_pass(ms(400));
    let before = subject.probe(&name).remaining.expect("it has a lease");
    assert!(direct.inspect(&name).holder.is_some());
    let after = subject.probe(&name).remaining.expect("it has a lease");
    assert!(after <= before, "{before:?} became {after:?}");
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    assert_eq!(direct.inspect(&name), LockInfo::FREE);
}

/// `inspect` returns the owner, to each client.
pub(crate) fn inspect_names_holder(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    for eyes in [&direct, &DirectBackend::open(subject)] {
        let holder = eyes.inspect(&name).holder.expect("it is held");
        assert!(
            owner.matches(&holder.owner),
            "{:?} is not {owner:?}",
            holder.owner
        );
        assert_eq!(holder.holds, 1);
    }
}

/// The remaining lease that `inspect` returns decreases.
pub(crate) fn inspected_remaining_lease_decreases(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    direct.hold(&name, ms(10_000));
    let left = || {
        direct
            .inspect(&name)
            .holder
            .expect("it is held")
            .remaining
            .expect("it ends")
    };
    let first = left();
    assert!(
        first <= ms(10_001) && first > ms(8_000),
        "{first:?} of 10 s are left"
    );
    let_pass(ms(300));
    let second = left();
    assert!(
        second + ms(200) < first,
        "{first:?}, and 300 ms later {second:?}"
    );
}

/// A forced release frees the lock of any owner and returns that it was held.
pub(crate) fn force_release_frees_lock_of_any_owner(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    assert!(
        DirectBackend::open(subject).force_release(&name),
        "it was held"
    );
    assert!(!subject.probe(&name).held);
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Gone
    );
    direct.hold(&name, short());
}

/// A forced release of a free lock returns that it was not held.
pub(crate) fn force_release_of_free_lock_reports_it(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    assert!(!direct.force_release(&name));
    let owner = direct.hold(&name, long());
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    assert!(!direct.force_release(&name));
}
