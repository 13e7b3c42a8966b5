//! The contract of [`Backend::renew`](crate::Backend::renew), asked for directly.

use crate::backend::{RENEW_BATCH, Release, ReleaseOptions, Renewal};
use crate::conformance::fixture::{Line, fresh_name, let_pass, long, ms, named, short};
use crate::conformance::subject::Subject;
use crate::name::LockName;
use crate::owner::OwnerId;
use std::time::Duration;

/// A renewal extends the lease to its full length from now, and says so.
pub(crate) fn renewal_extends_lease(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, ms(1_000));
    let_pass(ms(400));
    assert_eq!(line.renew(&name, owner, ms(1_000)), Renewal::Extended);
    assert!(left(subject, &name) > ms(700), "{:?} of 1 s are left", left(subject, &name));
    assert_eq!(line.renew(&name, owner, ms(10_000)), Renewal::Extended);
    assert!(left(subject, &name) > ms(8_000), "a longer lease is taken, too");
}

/// A renewal leaves a lease that is longer already: an older one may arrive after a younger one.
pub(crate) fn renewal_never_shortens_lease(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, ms(10_000));
    assert_eq!(line.renew(&name, owner, short()), Renewal::Extended);
    assert!(left(subject, &name) > ms(8_000), "{:?} of 10 s are left", left(subject, &name));
}

/// A renewal that finds nothing says so and brings nothing back.
pub(crate) fn renewal_never_recreates_lock(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let owner = line.hold(&name, long());
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    let lost = line.owner();
    for owner in [owner, lost] {
        let _answer = line.renew(&name, owner, long());
        assert!(!subject.probe(&name).held, "it was free before the renewal");
    }
}

/// A renewal of what is gone says so, whether it was released, lost, or is another's by now.
pub(crate) fn renewal_of_lost_lock_reports_gone(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let released = line.hold(&name, long());
    assert_eq!(line.release(&name, released, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    assert_eq!(line.renew(&name, released, long()), Renewal::Gone);
    let lost = line.hold(&name, long());
    subject.lose(&name);
    assert_eq!(line.renew(&name, lost, long()), Renewal::Gone);
    line.hold(&name, long());
    assert_eq!(line.renew(&name, lost, long()), Renewal::Gone);
}

/// A renewal extends its own owner's holding and no other.
pub(crate) fn renewal_by_other_owner_is_refused(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    line.hold(&name, ms(1_000));
    assert_eq!(line.renew(&name, line.owner(), long()), Renewal::Gone);
    assert!(left(subject, &name) <= ms(1_001), "the holder's lease is its own");
}

/// In a batch, each is for itself: one that is gone leaves the others as they would be alone.
pub(crate) fn batch_renews_each_lock_independently(subject: &dyn Subject) {
    let line = Line::open(subject);
    let held = hold_many(&line, 5, ms(1_000));
    subject.lose(&held[2].0);
    let answers = line.renew_all(&held, long());
    let others = [0, 1, 3, 4];
    for at in others {
        assert_eq!(answers[at], Renewal::Extended, "number {at}");
        assert!(left(subject, &held[at].0) > ms(5_000), "number {at}");
    }
    assert_eq!(answers[2], Renewal::Gone);
}

/// The answers stand in the order of the batch.
pub(crate) fn batch_is_answered_in_order(subject: &dyn Subject) {
    let line = Line::open(subject);
    let held = hold_many(&line, 4, long());
    subject.lose(&held[3].0);
    let expected = [Renewal::Extended, Renewal::Extended, Renewal::Extended, Renewal::Gone];
    assert_eq!(line.renew_all(&held, long()), expected);
}

/// As many as the engine may give at once are all renewed.
pub(crate) fn full_batch_renews_every_lock(subject: &dyn Subject) {
    let line = Line::open(subject);
    let held = hold_many(&line, RENEW_BATCH, ms(5_000));
    let answers = line.renew_all(&held, long());
    assert_eq!(answers, [Renewal::Extended; RENEW_BATCH]);
    for (name, _) in &held {
        assert!(left(subject, name) > ms(10_000), "{name:?}");
    }
}

/// Holds many locks that share a hash tag, and so a node.
pub(super) fn hold_many(line: &Line, many: usize, lease: Duration) -> Vec<(LockName, OwnerId)> {
    let tag = named("").to_string();
    (0..many)
        .map(|number| {
            let name = LockName::new(&format!("{{{tag}}}:{number}")).expect("well formed");
            let owner = line.hold(&name, lease);
            (name, owner)
        })
        .collect()
}

fn left(subject: &dyn Subject, name: &LockName) -> Duration {
    subject.probe(name).remaining.expect("it has a lease")
}
