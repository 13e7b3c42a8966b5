//! The contract of [`Admin::change_permits`](lock_core::backend::Admin::change_permits), and of an
//! attempt for all permits that are free.

use crate::fixture::{
    DirectBackend, eventually, free_of, fresh_name, long, ms, patience, permits, prompt, short,
};
use crate::subject::Subject;
use lock_core::backend::{PermitChange, PermitOutcome, Release, ReleaseOptions, Renewal};
use lock_core::{LeaseTime, PermitId};

const PLAIN: ReleaseOptions = ReleaseOptions::WITHOUT_TOMBSTONE;

/// Changes of the limit by a number add up, also from two clients. A change to a limit that no
/// semaphore may have is refused.
pub(crate) fn changes_of_a_limit_all_count(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let plain = fresh_name();
    let name = permits(&plain, 3, 1);
    let limit = |before, now| PermitOutcome::Limit { before, now };
    assert_eq!(
        direct.change(&name, PermitChange::AddLimit(2)),
        limit(None, 5)
    );
    let held = direct.hold(&name, long());
    assert_eq!(
        other.change(&name, PermitChange::AddLimit(-3)),
        limit(Some(5), 2)
    );
    let (wakes, _watch) = direct.waits_for(&permits(&plain, 3, 2));
    let before = wakes.count();
    assert_eq!(
        direct.change(&name, PermitChange::AddLimit(4)),
        limit(Some(2), 6)
    );
    eventually("waiters are woken", prompt(), || wakes.count() > before);
    assert_eq!(free_of(&other, &name), (5, 6));
    for more in [-6, i32::MIN, i32::MAX, 1_000_000] {
        let refused = other.try_change(&name, PermitChange::AddLimit(more));
        assert!(
            refused.is_err_and(|failure| failure.error().is_misuse()),
            "{more}"
        );
        assert_eq!(free_of(&other, &name), (5, 6), "nothing is changed");
    }
    assert_eq!(
        direct.change(&name, PermitChange::AddLimit(-5)),
        limit(Some(6), 1)
    );
    assert!(other.is_busy(&name));
    assert_eq!(direct.renew(&name, held, long()), Renewal::Extended);
}

/// Any client can free a permit by its ID, once. The acquisition to which the permit belonged is
/// then gone.
pub(crate) fn permit_is_released_by_its_identity(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let name = fresh_name();
    let (one, three) = (permits(&name, 5, 1), permits(&name, 5, 3));
    let (held, kept) = (direct.hold(&one, long()), direct.hold(&one, long()));
    let many = direct.hold(&three, long());
    assert!(other.is_busy(&one));
    let (wakes, _watch) = direct.watch(&one);
    let waiter = direct.owner();
    assert!(direct.wait(&one, waiter, long()).is_busy());
    let before = wakes.count();
    let release = |id| other.change(&one, PermitChange::Release(id));
    assert_eq!(release(PermitId::new(held, 0)), PermitOutcome::Changed);
    eventually("waiters are woken", prompt(), || wakes.count() > before);
    assert_eq!(direct.release(&one, waiter, PLAIN), Release::Gone);
    assert_eq!(release(PermitId::new(held, 0)), PermitOutcome::NotTaken);
    assert_eq!(
        release(PermitId::new(other.owner(), 0)),
        PermitOutcome::NotTaken
    );
    assert_eq!(free_of(&other, &one), (1, 5));
    assert_eq!(direct.renew(&one, held, long()), Renewal::Gone);
    assert_eq!(direct.renew(&one, kept, long()), Renewal::Extended);
    // One of three permits is freed. The other two stay taken until the holder's release.
    assert_eq!(direct.renew(&three, many, long()), Renewal::Extended);
    assert_eq!(release(PermitId::new(many, 1)), PermitOutcome::Changed);
    assert_eq!(free_of(&other, &one), (2, 5));
    assert_eq!(direct.renew(&three, many, long()), Renewal::Gone);
    assert_eq!(direct.release(&three, many, PLAIN), Release::Gone);
    assert_eq!(free_of(&other, &one), (4, 5));
}

/// Any client can extend the lease of a permit by its ID, but not shorten it. A permit whose lease
/// has ended stays free.
pub(crate) fn permit_is_extended_by_its_identity(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let name = permits(&fresh_name(), 3, 1);
    let held = direct.hold(&name, long());
    let (extended, over) = (direct.hold(&name, short()), direct.hold(&name, short()));
    let extend = |owner, lease| {
        let lease = LeaseTime::new(lease).expect("a lease");
        other.change(&name, PermitChange::Extend(PermitId::new(owner, 0), lease))
    };
    assert_eq!(extend(extended, ms(60_000)), PermitOutcome::Changed);
    assert_eq!(extend(held, ms(100)), PermitOutcome::Changed);
    assert_eq!(extend(other.owner(), long()), PermitOutcome::NotTaken);
    eventually("the other one is over", patience(), || {
        free_of(&other, &name) == (1, 3)
    });
    assert_eq!(extend(over, long()), PermitOutcome::NotTaken);
    assert_eq!(free_of(&other, &name), (1, 3), "it is still free");
    assert!(direct.verifies(&name, extended) && direct.verifies(&name, held));
}

/// An attempt for all free permits takes the permits that are free, and no more when it is
/// repeated.
pub(crate) fn drain_takes_all_free_permits_once(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let name = fresh_name();
    let (one, all) = (permits(&name, 5, 1), permits(&name, 5, 0));
    let first = direct.owner();
    assert_eq!(
        direct.granted(&all, first, long()).count,
        Some(5),
        "of one that is new"
    );
    assert!(other.is_busy(&all) && other.is_busy(&one));
    assert_eq!(
        direct.release(&permits(&name, 5, 5), first, PLAIN),
        Release::Freed
    );
    let held = other.hold(&one, long());
    let drains = direct.owner();
    for _ in 0..3 {
        assert_eq!(direct.granted(&all, drains, long()).count, Some(4));
        assert_eq!(free_of(&other, &one), (0, 5));
    }
    assert_eq!(other.release(&one, held, PLAIN), Release::Freed);
    assert_eq!(
        direct.granted(&all, drains, long()).count,
        Some(4),
        "as before"
    );
    assert_eq!(free_of(&other, &one), (1, 5));
    let four = permits(&name, 5, 4);
    assert_eq!(direct.renew(&four, drains, long()), Renewal::Extended);
    assert_eq!(direct.release(&four, drains, PLAIN), Release::Freed);
    assert_eq!(free_of(&other, &one), (5, 5));
}
