//! The contract of [`Backend::renew`](lock_core::Backend::renew), tested by direct calls.

use crate::fixture::{DirectBackend, fresh_name, let_pass, long, ms, named, short};
use crate::subject::Subject;
use lock_core::backend::{RENEW_BATCH, Release, ReleaseOptions, Renewal};
use lock_core::{LockName, OwnerId, OwnerLabel};
use std::time::Duration;

/// A renewal extends the lease to its full length from now, and returns `Extended`.
pub(crate) fn renewal_extends_lease(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, ms(1_000));
    let_pass(ms(400));
    assert_eq!(direct.renew(&name, owner, ms(1_000)), Renewal::Extended);
    assert!(
        left(subject, &name) > ms(700),
        "{:?} of 1 s are left",
        left(subject, &name)
    );
    assert_eq!(direct.renew(&name, owner, ms(10_000)), Renewal::Extended);
    assert!(
        left(subject, &name) > ms(8_000),
        "a longer lease is taken, too"
    );
}

/// A renewal keeps a longer lease: an older renewal may arrive after a newer one.
pub(crate) fn renewal_never_shortens_lease(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, ms(10_000));
    assert_eq!(direct.renew(&name, owner, short()), Renewal::Extended);
    assert!(
        left(subject, &name) > ms(8_000),
        "{:?} of 10 s are left",
        left(subject, &name)
    );
}

/// A renewal of a free lock does not create it.
pub(crate) fn renewal_never_recreates_lock(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let owner = direct.hold(&name, long());
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    let lost = direct.owner();
    for owner in [owner, lost] {
        let _answer = direct.renew(&name, owner, long());
        assert!(!subject.probe(&name).held, "it was free before the renewal");
    }
}

/// A renewal of a lock that was released, lost or granted to another owner returns `Gone`.
pub(crate) fn renewal_of_lost_lock_reports_gone(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let released = direct.hold(&name, long());
    assert_eq!(
        direct.release(&name, released, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    assert_eq!(direct.renew(&name, released, long()), Renewal::Gone);
    let lost = direct.hold(&name, long());
    subject.lose(&name);
    assert_eq!(direct.renew(&name, lost, long()), Renewal::Gone);
    direct.hold(&name, long());
    assert_eq!(direct.renew(&name, lost, long()), Renewal::Gone);
}

/// A renewal extends its own owner's lock only.
pub(crate) fn renewal_by_other_owner_is_refused(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    direct.hold(&name, ms(1_000));
    assert_eq!(direct.renew(&name, direct.owner(), long()), Renewal::Gone);
    assert!(
        left(subject, &name) <= ms(1_001),
        "the holder's lease is its own"
    );
}

/// `inspect` shows the label of a renewal only while the owner of that renewal holds the lock.
/// A store need not keep labels.
pub(crate) fn label_is_never_shown_for_another_owner(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let label = |text: &str| Some(OwnerLabel::new(text.into(), ms(1_234_567)));
    let shown = || direct.inspect(&name).holder.expect("it is held").label;
    let renewed = |owner, of| {
        assert_eq!(direct.renew_as(&name, owner, label(of)), Renewal::Extended);
        let shown = shown();
        assert!(shown.is_none() || shown == label(of), "{shown:?} of {of}");
    };
    let first = direct.hold(&name, long());
    renewed(first, "first");
    assert_eq!(
        direct.release(&name, first, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    let second = direct.hold(&name, long());
    assert_eq!(shown(), None, "the first has released it");
    assert_eq!(direct.renew_as(&name, first, label("first")), Renewal::Gone);
    assert_eq!(shown(), None, "a late renewal of the first");
    renewed(second, "second");
    subject.lose(&name);
    direct.hold(&name, long());
    assert_eq!(shown(), None, "the second has lost it");
}

/// In a batch, a lost lock does not affect the renewals of the other locks.
pub(crate) fn batch_renews_each_lock_independently(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let held = hold_many(&direct, 5, ms(1_000));
    subject.lose(&held[2].0);
    let answers = direct.renew_all(&held, long());
    let others = [0, 1, 3, 4];
    for at in others {
        assert_eq!(answers[at], Renewal::Extended, "number {at}");
        assert!(left(subject, &held[at].0) > ms(5_000), "number {at}");
    }
    assert_eq!(answers[2], Renewal::Gone);
}

/// The answers are in the order of the batch.
pub(crate) fn batch_is_answered_in_order(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let held = hold_many(&direct, 4, long());
    subject.lose(&held[3].0);
    let expected = [
        Renewal::Extended,
        Renewal::Extended,
        Renewal::Extended,
        Renewal::Gone,
    ];
    assert_eq!(direct.renew_all(&held, long()), expected);
}

/// The largest batch of the engine is renewed completely.
pub(crate) fn full_batch_renews_every_lock(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let held = hold_many(&direct, RENEW_BATCH, ms(5_000));
    let answers = direct.renew_all(&held, long());
    assert_eq!(answers, [Renewal::Extended; RENEW_BATCH]);
    for (name, _) in &held {
        assert!(left(subject, name) > ms(10_000), "{name:?}");
    }
}

/// Takes this many locks. Their names share a hash tag, so that one node has all of them.
pub(super) fn hold_many(
    direct: &DirectBackend,
    many: usize,
    lease: Duration,
) -> Vec<(LockName, OwnerId)> {
    let tag = named("").to_string();
    (0..many)
        .map(|number| {
            let name = LockName::new(&format!("{{{tag}}}:{number}")).expect("well formed");
            let owner = direct.hold(&name, lease);
            (name, owner)
        })
        .collect()
}

fn left(subject: &dyn Subject, name: &LockName) -> Duration {
    subject.probe(name).remaining.expect("it has a lease")
}
