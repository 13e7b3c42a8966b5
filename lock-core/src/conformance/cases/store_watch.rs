//! The contract of [`Backend::watch`](crate::Backend::watch), asked for directly.

use crate::backend::{Release, ReleaseOptions};
use crate::conformance::fixture::{Line, eventually, fresh_name, let_pass, long, ms, prompt};
use crate::conformance::subject::Subject;

/// A release rings, whichever client it comes through.
pub(crate) fn release_by_any_client_wakes_watch(subject: &dyn Subject) {
    let (line, other, name) = (Line::open(subject), Line::open(subject), fresh_name());
    let (bell, _watch) = line.watch(&name);
    for releasing in [&line, &other, &line] {
        let owner = releasing.hold(&name, long());
        let before = bell.count();
        assert_eq!(
            releasing.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
            Release::Freed
        );
        eventually("the release is told", prompt(), || bell.count() > before);
    }
}

/// A release by force rings, too.
pub(crate) fn force_release_wakes_watch(subject: &dyn Subject) {
    let (line, other, name) = (Line::open(subject), Line::open(subject), fresh_name());
    let (bell, _watch) = line.watch(&name);
    line.hold(&name, long());
    let before = bell.count();
    assert!(other.force_release(&name));
    eventually("the release by force is told", prompt(), || bell.count() > before);
}

/// Everybody who watches is told.
pub(crate) fn every_watcher_is_woken(subject: &dyn Subject) {
    let lines: [Line; 3] = std::array::from_fn(|_| Line::open(subject));
    let name = fresh_name();
    let watches: Vec<_> = lines.iter().chain(&lines).map(|line| line.watch(&name)).collect();
    let owner = lines[0].hold(&name, long());
    assert_eq!(lines[0].release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    for (at, (bell, _watch)) in watches.iter().enumerate() {
        eventually(&format!("watcher {at} of 6 is told"), prompt(), || bell.count() > 0);
    }
}

/// From the moment `watch` returns, nothing is missed: the engine looks at the lock once more right
/// after.
pub(crate) fn watch_is_active_when_it_returns(subject: &dyn Subject) {
    let line = Line::open(subject);
    for _ in 0..5 {
        let name = fresh_name();
        let owner = line.hold(&name, long());
        let (bell, _watch) = line.watch(&name);
        let before = bell.count();
        assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
        eventually("the release right after is told", prompt(), || bell.count() > before);
    }
}

/// A watch that was dropped is silent, also while others watch the same name.
pub(crate) fn dropped_watch_is_silent(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let (bell, watch) = line.watch(&name);
    let (other, _other_watch) = line.watch(&name);
    let cycle = || {
        let before = other.count();
        let owner = line.hold(&name, long());
        assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
        eventually("the other watcher is told", prompt(), || other.count() > before);
    };
    cycle();
    eventually("it rings while it lasts", prompt(), || bell.count() > 0);
    drop(watch);
    // Calls may be under way while the watch is dropped, one for each server that tells of a
    // release. One that is not dropped rings at each cycle.
    let is_silent = || {
        let before = bell.count();
        cycle();
        let_pass(ms(100));
        bell.count() == before
    };
    assert!((0..5).any(|_| is_silent()), "a dropped watch is silent");
}
