//! The contract of [`Backend::release`](crate::Backend::release),
//! [`inspect`](crate::Backend::inspect) and [`force_release`](crate::Backend::force_release), asked
//! for directly.

use crate::backend::{LockInfo, Release, ReleaseOptions};
use crate::conformance::fixture::{
    Line, eventually, fresh_name, let_pass, long, ms, patience, short,
};
use crate::conformance::subject::Subject;
use crate::conformance::violation::violated_unless;

/// A release frees its own owner's holding and says so.
pub(crate) fn release_frees_lock_and_reports_it(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    assert!(!subject.probe(&name).held);
    assert!(!line.is_busy(&name));
}

/// A release is sent again when its answer was lost: the second finds nothing, and does nothing.
pub(crate) fn repeated_release_reports_gone(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Gone);
    let next = line.hold(&name, long());
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Gone);
    assert_eq!(line.bury(&name, owner, short()), Release::Gone);
    violated_unless(subject.probe(&name).held, "a late release freed its successor's lock");
    assert_eq!(line.release(&name, next, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
}

/// A release by an owner that does not hold the lock is answered `Gone`, and the holder keeps it.
pub(crate) fn release_by_other_owner_is_refused(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    assert_eq!(line.release(&name, line.owner(), ReleaseOptions::WITHOUT_TOMBSTONE), Release::Gone);
    let other = Line::open(subject);
    assert_eq!(other.bury(&name, other.owner(), short()), Release::Gone);
    violated_unless(subject.probe(&name).held, "a stranger freed the lock");
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
}

/// A release after the lease has ended is answered `Gone`.
pub(crate) fn release_after_lease_end_reports_gone(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, short());
    eventually("the lease ends", patience(), || !subject.probe(&name).held);
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Gone);
}

/// A release in doubt frees the lock like any other, and leaves its mark besides.
pub(crate) fn release_with_tombstone_frees_lock(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    let (bell, _watch) = line.watch(&name);
    assert_eq!(line.bury(&name, owner, long()), Release::Freed);
    assert!(!subject.probe(&name).held);
    assert!(bell.rings(patience()), "waiters are told of it");
    line.hold(&name, short());
}

/// Looking changes nothing: neither who holds the lock nor for how long.
pub(crate) fn inspect_changes_nothing(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    assert_eq!(line.inspect(&name), LockInfo::FREE);
    assert!(!subject.probe(&name).held, "a free lock stays free");
    let owner = line.hold(&name, ms(1_000));
    let_pass(ms(400));
    let before = subject.probe(&name).remaining.expect("it has a lease");
    assert!(line.inspect(&name).holder.is_some());
    let after = subject.probe(&name).remaining.expect("it has a lease");
    assert!(after <= before, "{before:?} became {after:?}");
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    assert_eq!(line.inspect(&name), LockInfo::FREE);
}

/// The store says who holds the lock, to everybody alike.
pub(crate) fn inspect_names_holder(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    for eyes in [&line, &Line::open(subject)] {
        let holder = eyes.inspect(&name).holder.expect("it is held");
        assert!(owner.matches(&holder.owner), "{:?} is not {owner:?}", holder.owner);
        assert_eq!(holder.holds, 1);
    }
}

/// What is left of the lease runs down.
pub(crate) fn inspected_remaining_lease_decreases(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    line.hold(&name, ms(10_000));
    let left = || line.inspect(&name).holder.expect("it is held").remaining.expect("it ends");
    let first = left();
    assert!(first <= ms(10_001) && first > ms(8_000), "{first:?} of 10 s are left");
    let_pass(ms(300));
    let second = left();
    assert!(second + ms(200) < first, "{first:?}, and 300 ms later {second:?}");
}

/// Force frees the lock whoever holds it, and says whether anybody did.
pub(crate) fn force_release_frees_lock_of_any_owner(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    assert!(Line::open(subject).force_release(&name), "it was held");
    assert!(!subject.probe(&name).held);
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Gone);
    line.hold(&name, short());
}

/// Force says of a free lock that nobody held it.
pub(crate) fn force_release_of_free_lock_reports_it(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    assert!(!line.force_release(&name));
    let owner = line.hold(&name, long());
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    assert!(!line.force_release(&name));
}
