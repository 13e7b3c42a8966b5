//! What one side can see of the other side's lock, and must not be able to do to it.

use crate::held_key::SHORTEST;
use crate::late::{self, retry_if_late, timely};
use crate::libraries::{Library, Refusal};
use crate::peer::{BOUND, Peer, SETTLED};
use crate::scene::Scene;
use distlock::{Error, LockGuard, LossCause};
use distlock_tests::probe::Probe;
use distlock_tests::time::{Stopwatch, always, eventually, let_pass, scaled};
use lock_conformance::violated;
use std::time::Duration;

/// The pause between two checks of a lock that must not change.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The age at which our lock with the default lease is renewed.
pub(crate) const RENEWED_AFTER: Duration = Duration::from_secs(10);

/// Returns the value of a key as the store dumps it, without its time to live.
fn stored(probe: &mut Probe, key: &str) -> String {
    format!("{:?}", probe.command(&["DUMP", key]))
}

/// Checks how the peer answers an unlock of a lock that it does not hold.
#[track_caller]
pub(crate) fn unlock_is_refused(peer: &Peer, as_it_does: Refusal) {
    let said = peer.tell("t", "unlock lock").answer(BOUND);
    let is_so = match (as_it_does, &said) {
        (Refusal::Says(words), Err(said)) => said.contains(words),
        (Refusal::Silent, Ok(_)) => true,
        (Refusal::CannotBeAsked, Err(said)) => said == "unsupported",
        _ => false,
    };
    assert!(is_so, "{as_it_does:?} it should be, and was {said:?}");
}

/// Checks for the whole of this time that our guard is valid, in the store, too. Its lease must be
/// longer.
#[track_caller]
pub(crate) fn must_stay_ours(guard: &LockGuard, time: Duration) {
    always("ours stays ours", time, || {
        guard.is_valid() && guard.verify().is_ok()
    });
}

/// Checks for the whole of this time that renewals keep our guard valid, in the store, too.
pub(crate) fn must_be_renewed(guard: &LockGuard, time: Duration) {
    let (since, mut lease) = (Stopwatch::start(), Duration::ZERO);
    while since.elapsed() < scaled(time) {
        let (asked, left) = (Stopwatch::start(), guard.remaining());
        lease = lease.max(left);
        let verified = guard.verify();
        if verified.as_ref().is_err_and(Error::is_lost) && asked.elapsed() < left {
            violated(format_args!(
                "a loss was not told, {left:?} before the end: {guard:?}"
            ));
        }
        let is_kept = guard.is_valid() && verified.is_ok();
        timely!(
            lease,
            is_kept,
            "ours was not renewed: {verified:?}, {guard:?}"
        );
        let_pass(LOOK_AGAIN);
    }
}

/// Waits until a waiter of the peer sleeps on its channel or its list, after the attempt that
/// follows its subscription.
pub(crate) fn until_it_sleeps(scene: &Scene) {
    let mut probe = scene.probe();
    eventually("a waiter of theirs sleeps", BOUND, || {
        let is_blocked = probe
            .info_field("clients", "blocked_clients")
            .is_some_and(|it| it != "0");
        is_blocked || !probe.command(&["PUBSUB", "CHANNELS"]).texts().is_empty()
    });
    let_pass(SETTLED);
}

/// The peer's unlock of our lock is refused and changes nothing.
pub(crate) fn foreign_unlock_of_our_lock_is_refused(library: &'static Library) {
    let scene = Scene::of(library);
    let (key, mut probe) = (library.key("lock"), scene.probe());
    let guard = scene.ours.mutex("lock").lock().unwrap();
    let before = stored(&mut probe, &key);
    unlock_is_refused(&scene.peer, library.never_held);
    let state = scene.peer.ask("t", "state lock");
    assert!(
        state.starts_with("locked=true") || state.starts_with("locked=?"),
        "{state}"
    );
    assert!(
        state.contains("holds=0") || state.contains("holds=?"),
        "{state}"
    );
    assert!(scene.peer.ask("t", "try lock 0 0").starts_with("busy"));
    assert_eq!(stored(&mut probe, &key), before);
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(!probe.exists(&key));
}

/// A late unlock changes nothing if the other side holds the lock by then. Ours is an error.
pub(crate) fn late_unlock_leaves_the_next_holders_lock(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        // With tracking, the guard would be notified of the change and know before the unlock.
        let scene = Scene::with(library, "tracking=off", &[]);
        let (key, mut probe) = (library.key("lock"), scene.probe());
        let lock = scene.ours.mutex("lock");
        // An operator deletes our lock, and the peer takes it.
        let guard = lock.lock().unwrap();
        probe.command(&["DEL", &key]);
        assert!(scene.peer.ask("t", "try lock 1000 0").starts_with("held"));
        let theirs = stored(&mut probe, &key);
        timely!(RENEWED_AFTER, guard.is_valid(), "a renewal was there first");
        let error = guard.unlock().unwrap_err();
        assert!(error.is_lost(), "{error:?}");
        timely!(SHORTEST, probe.exists(&key), "their lease is over");
        assert_eq!(stored(&mut probe, &key), theirs);
        assert!(lock.try_lock().unwrap().is_none());
        // The operator deletes the peer's lock, and we take it.
        probe.command(&["DEL", &key]);
        let guard = lock.lock().unwrap();
        let before = stored(&mut probe, &key);
        unlock_is_refused(&scene.peer, library.too_late);
        assert_eq!(stored(&mut probe, &key), before);
        guard.verify().unwrap();
        guard.unlock().unwrap();
    });
}

/// Our nested holds are one hold in the store, until the last guard is released. Those of the peer
/// are counted in the store.
pub(crate) fn nested_holds_are_held_until_the_last(library: &'static Library) {
    let scene = Scene::of(library);
    let (key, mut probe) = (library.key("lock"), scene.probe());
    let lock = scene.ours.mutex("lock");
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    assert_eq!(lock.hold_count(), 2);
    assert_eq!(probe.hgetall(&key).into_values().collect::<Vec<_>>(), ["1"]);
    let seen = scene.peer.ask("t", "state lock");
    let ttl = seen
        .strip_prefix("locked=true holds=0 ttl=")
        .expect("it is ours for a while");
    assert!((20_000..=30_000).contains(&ttl.parse().unwrap()), "{seen}");
    inner.unlock().unwrap();
    assert!(scene.peer.ask("t", "try lock 0 0").starts_with("busy"));
    outer.unlock().unwrap();
    for holds in 1..=3 {
        scene.peer.ask("t", "lock lock 0");
        assert_eq!(lock.inspect().unwrap().holder.unwrap().holds, holds);
    }
    let state = scene.peer.ask("t", "state lock");
    assert!(state.starts_with("locked=true holds=3"), "{state}");
    for left in [2, 1] {
        scene.peer.ask("t", "unlock lock");
        assert_eq!(lock.inspect().unwrap().holder.unwrap().holds, left);
        assert!(
            lock.try_lock().unwrap().is_none(),
            "they have it {left} times more"
        );
    }
    scene.peer.ask("t", "unlock lock");
    assert!(lock.try_lock().unwrap().is_some());
}

/// A holder whose lock is freed by force is told so: our guard at its next renewal, the peer at its
/// unlock.
pub(crate) fn lock_freed_by_force_is_lost_to_its_holder(library: &'static Library) {
    let scene = Scene::with(library, "watchdog=1s", &[]);
    let lock = scene.ours.mutex("lock");
    let guard = lock.lock().unwrap();
    let losses = guard.losses();
    assert_eq!(scene.peer.ask("t", "force lock"), "true");
    let loss = losses
        .recv_timeout(BOUND)
        .expect("the next renewal notices");
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(!guard.is_valid());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(scene.peer.ask("t", "force lock"), "false");

    scene.peer.ask("t", "lock lock 0");
    let waiting = scene.peer.tell("other", "lock lock 0");
    until_it_sleeps(&scene);
    assert!(!waiting.is_there());
    assert!(lock.force_unlock().unwrap());
    // A waiter that is notified returns long before the lease ends.
    waiting.ok();
    unlock_is_refused(&scene.peer, library.too_late);
    scene.peer.ask("other", "unlock lock");
    eventually("it is free", BOUND, || !lock.is_locked().unwrap());
    assert!(!lock.force_unlock().unwrap());
}
