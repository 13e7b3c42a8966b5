//! The contract of [`Backend::watch`](lock_core::Backend::watch), tested by direct calls.

use crate::fixture::{DirectBackend, eventually, fresh_name, let_pass, long, ms, prompt};
use crate::subject::Subject;
use lock_core::backend::{Release, ReleaseOptions};

/// A release by any client wakes the watch.
pub(crate) fn release_by_any_client_wakes_watch(subject: &dyn Subject) {
    let (direct, other, name) = (
        DirectBackend::open(subject),
        DirectBackend::open(subject),
        fresh_name(),
    );
    let (wakes, _watch) = direct.watch(&name);
    for releasing in [&direct, &other, &direct] {
        let owner = releasing.hold(&name, long());
        let before = wakes.count();
        assert_eq!(
            releasing.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
            Release::Freed
        );
        eventually("the release wakes the watch", prompt(), || {
            wakes.count() > before
        });
    }
}

/// A forced release wakes the watch.
pub(crate) fn force_release_wakes_watch(subject: &dyn Subject) {
    let (direct, other, name) = (
        DirectBackend::open(subject),
        DirectBackend::open(subject),
        fresh_name(),
    );
    let (wakes, _watch) = direct.watch(&name);
    direct.hold(&name, long());
    let before = wakes.count();
    assert!(other.force_release(&name));
    eventually("the forced release wakes the watch", prompt(), || {
        wakes.count() > before
    });
}

/// All watchers are woken.
pub(crate) fn every_watcher_is_woken(subject: &dyn Subject) {
    let directs: [DirectBackend; 3] = std::array::from_fn(|_| DirectBackend::open(subject));
    let name = fresh_name();
    let watches: Vec<_> = directs
        .iter()
        .chain(&directs)
        .map(|direct| direct.watch(&name))
        .collect();
    let owner = directs[0].hold(&name, long());
    assert_eq!(
        directs[0].release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    for (at, (wakes, _watch)) in watches.iter().enumerate() {
        eventually(&format!("watcher {at} of 6 is woken"), prompt(), || {
            wakes.count() > 0
        });
    }
}

/// After `watch` has returned, no release is missed. The engine relies on that: it makes one more
/// attempt then, and sleeps.
pub(crate) fn watch_is_active_when_it_returns(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    for _ in 0..5 {
        let name = fresh_name();
        let owner = direct.hold(&name, long());
        let (wakes, _watch) = direct.watch(&name);
        let before = wakes.count();
        assert_eq!(
            direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
            Release::Freed
        );
        eventually("the release right after wakes the watch", prompt(), || {
            wakes.count() > before
        });
    }
}

/// A dropped watch is not woken, even when other watches of the name are woken.
pub(crate) fn dropped_watch_is_silent(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (wakes, watch) = direct.watch(&name);
    let (other, _other_watch) = direct.watch(&name);
    let cycle = || {
        let before = other.count();
        let owner = direct.hold(&name, long());
        assert_eq!(
            direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
            Release::Freed
        );
        eventually("the other watcher is woken", prompt(), || {
            other.count() > before
        });
    };
    cycle();
    eventually("it is woken before the drop", prompt(), || {
        wakes.count() > 0
    });
    drop(watch);
    // When the watch is dropped, calls of its callback may still be in progress, one for each
    // server, so a few cycles may seem to wake it. A watch that is not dropped is woken by each
    // cycle.
    let is_silent = || {
        let before = wakes.count();
        cycle();
        let_pass(ms(100));
        wakes.count() == before
    };
    assert!((0..5).any(|_| is_silent()), "a dropped watch is silent");
}
