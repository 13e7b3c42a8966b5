//! Cases for ShedLock alone, or for redis-py alone.

use super::{REDIS_PY, SHEDLOCK};
use crate::cases::exact::add_up;
use crate::cases::holding::must_be_renewed;
use crate::cases::leases::must_be_in_time;
use crate::held_key::HeldKey;
use crate::late::{self, retry_if_late};
use crate::libraries::Library;
use crate::peer::BOUND;
use crate::scene::Scene;
use crate::suite::{Permit, Suite, case};
use distlock::admin::Counters;
use distlock::{LockGuard, LossCause};
use distlock_tests::time::{Stopwatch, eventually, ms};
use std::sync::Arc;
use std::time::Duration;

/// ShedLock as it is by default: its unlock deletes the key of any owner.
static UNSAFE: Library = Library {
    name: "shedlock",
    id: "unsafe",
    arguments: &["kind=shedlock"],
    ..SHEDLOCK
};

static SAFE: Library = Library {
    id: "safe",
    ..SHEDLOCK
};

/// redis-py as it is by default: its lock has no expiry.
static WITHOUT_END: Library = Library {
    arguments: &["kind=redis-py"],
    ..REDIS_PY
};

pub(crate) fn mount(suite: &mut Suite) {
    let late = case!(late_shedlock_unlock_deletes_our_lock_guard_is_told);
    suite.shared(&UNSAFE, late);
    let at_least = case!(shedlock_lock_at_least_for_is_busy_until_then);
    suite.each(Permit::Shared, [&UNSAFE, &SAFE], at_least);
    let written = case!(shedlock_extension_overwrites_our_lock_guard_is_told);
    suite.shared(&UNSAFE, written);
    let safe = case!(shedlock_with_safe_updates_leaves_our_lock);
    suite.shared(&SAFE, safe);
    let endless = case!(redis_py_lock_without_expiry_is_waited_for_and_named);
    suite.shared(&WITHOUT_END, endless);
    let format = case!(forgotten_format_is_an_error_and_grants_no_lock);
    suite.shared(&REDIS_PY, format);
    suite.shared(&REDIS_PY, case!(no_increment_is_lost_without_our_tokens));
}

/// A ShedLock job outlives its lease, we take the lock, and the job's unlock deletes it. Nothing
/// can prevent that, but our guard reports the loss at its next renewal.
fn late_shedlock_unlock_deletes_our_lock_guard_is_told(library: &'static Library) {
    let scene = Scene::with(library, "watchdog=1s", &[]);
    let (lock, key) = (scene.ours.mutex("job"), library.key("job"));
    scene.peer.ask("t", "lock job 300");
    let guard = lock.try_lock_for(BOUND).unwrap().expect("its lease ends");
    let losses = guard.losses();
    scene.peer.ask("t", "unlock job");
    assert!(!scene.probe().exists(&key), "it has deleted what is ours");
    // Another client holds the lock now, and our guard does not know yet.
    assert!(
        scene
            .peer
            .ask("other", "try job 0 30000")
            .starts_with("held")
    );
    let loss = losses
        .recv_timeout(BOUND)
        .expect("the next renewal notices");
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(!guard.is_valid());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(
        scene.probe().exists(&key),
        "and what is theirs we leave alone"
    );
    scene.peer.ask("other", "unlock job");
}

/// With `lockAtLeastFor` a job that ends sooner leaves its lock in the store until then. We find it
/// busy for that long, and then get it.
fn shedlock_lock_at_least_for_is_busy_until_then(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["at-least=1500"]);
        let lock = scene.ours.mutex("job");
        // The first request of a JVM takes a good part of that time.
        scene.peer.ask("t", "lock warm 30000");
        scene.peer.ask("t", "lock job 30000");
        scene.peer.ask("t", "unlock job");
        let clock = Stopwatch::start();
        let left = scene.probe().pttl(&library.key("job"));
        let Some(left) = left else {
            late::late(ms(1_500), "its lock is over")
        };
        assert!(left <= ms(1_500), "it is to end sooner: {left:?}");
        let mut held = HeldKey::of(scene.probe(), &library.key("job"));
        held.must_refuse(|| lock.try_lock().unwrap().is_some());
        let guard = lock.try_lock_for(BOUND).unwrap().expect("it ends");
        let what = format!("{}: what it keeps at least", library.name);
        must_be_in_time(&what, library.ours, left, clock.elapsed());
        guard.unlock().unwrap();
    });
}

/// Returns our guard of a lock that ShedLock releases too late: a job with `lockAtLeastFor` had it,
/// it was freed by force, and the job ends only when the lock is ours.
fn released_too_late(scene: &Scene) -> LockGuard {
    let lock = scene.ours.mutex("job");
    // A JVM loads classes at its first requests, which take long.
    scene.peer.ask("t", "lock warm 30000");
    scene.peer.ask("t", "unlock warm");
    scene.peer.ask("t", "lock job 30000");
    assert!(lock.force_unlock().unwrap());
    let guard = lock.try_lock().unwrap().expect("it is free");
    scene.peer.ask("t", "unlock job");
    guard
}

/// To keep a lock for the time of `lockAtLeastFor`, ShedLock by default writes its own text without
/// a check, over our lock, too. Our guard notices at its next renewal, and does not change that
/// text.
fn shedlock_extension_overwrites_our_lock_guard_is_told(library: &'static Library) {
    let scene = Scene::with(library, "watchdog=6s", &["at-least=10000"]);
    let (mut probe, key) = (scene.probe(), library.key("job"));
    let guard = released_too_late(&scene);
    let losses = guard.losses();
    let theirs = probe.get(&key).expect("it is there");
    assert!(guard.is_valid(), "we are not told yet");
    let loss = losses
        .recv_timeout(BOUND)
        .expect("the next renewal notices");
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(!guard.is_valid());
    let left = probe.pttl(&key).expect("it has an end");
    let token = guard.fencing_token();
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(
        probe.get(&key),
        Some(theirs),
        "what is theirs we leave alone"
    );
    let later = probe.pttl(&key).expect("it is there");
    assert!(
        left > Duration::from_secs(5) && later <= left,
        "and do not renew: {left:?}, {later:?}"
    );
    let lock = scene.ours.mutex("job");
    assert!(lock.try_lock().unwrap().is_none());
    assert!(lock.force_unlock().unwrap());
    assert!(
        lock.lock().unwrap().fencing_token() > token,
        "what it protects can tell"
    );
}

/// With `safeUpdate` ShedLock compares the owner before it writes, so our lock stays ours.
fn shedlock_with_safe_updates_leaves_our_lock(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "watchdog=1s", &["at-least=10000"]);
        let guard = released_too_late(&scene);
        // Over more than two of our renewals.
        must_be_renewed(&guard, Duration::from_secs(1));
        guard.unlock().unwrap();
        assert!(!scene.probe().exists(&library.key("job")));
    });
}

/// A client that waits for a redis-py lock without expiry reports that. It gets the lock when it is
/// released, and may free it by force.
fn redis_py_lock_without_expiry_is_waited_for_and_named(library: &'static Library) {
    let scene = Scene::of(library);
    let told = Arc::new(Counters::new());
    let builder = distlock::builder().url(&scene.ours.url("")).unwrap();
    let client = builder.events(Arc::clone(&told) as _).connect().unwrap();
    let lock = client.mutex("lock").unwrap();
    scene.peer.ask("t", "lock lock 0");
    assert!(lock.try_lock_for(ms(300)).unwrap().is_none());
    eventually("it is told", BOUND, || {
        told.count("busy_without_expiry") == 1
    });
    assert_eq!(lock.inspect().unwrap().holder.unwrap().remaining, None);
    scene.peer.ask("t", "unlock lock");
    lock.try_lock_for(BOUND)
        .unwrap()
        .expect("it is released")
        .unlock()
        .unwrap();

    scene.peer.ask("t", "lock lock 0");
    assert!(lock.force_unlock().unwrap());
    let guard = lock.try_lock().unwrap().expect("it is free");
    let said = scene.peer.refusal("t", "unlock lock");
    assert!(said.contains("no longer owned"), "{said}");
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// Without `format=token` our client gets an error that names the format, and no lock. Nor does
/// redis-py get a lock that we hold in another format.
fn forgotten_format_is_an_error_and_grants_no_lock(library: &'static Library) {
    let scene = Scene::of(library);
    let client = distlock::connect(&scene.server.url()).unwrap();
    let lock = client.mutex("lock").unwrap();
    scene.peer.ask("t", "lock lock 0");
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_foreign_format(), "{error:?}");
    assert!(error.to_string().contains("format=token"), "{error}");
    scene.peer.ask("t", "unlock lock");

    let guard = lock.lock().unwrap();
    assert!(scene.peer.ask("t", "try lock 0 0").starts_with("busy"));
    let said = scene.peer.refusal("t", "unlock lock");
    assert!(said.contains("WRONGTYPE"), "{said}");
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// With `tokens=off` neither library leaves a key behind.
fn no_increment_is_lost_without_our_tokens(library: &'static Library) {
    let scene = Scene::with(library, "tokens=off", library.eager);
    let lock = scene.ours.mutex("lock");
    add_up(
        "redis-py, tokens=off",
        &scene.peer,
        &lock,
        "lock",
        &scene.server,
        (200, 2),
    );
    assert_eq!(
        scene.probe().keys("*"),
        [""; 0],
        "no counter of ours is left"
    );
}
