//! Libraries that tell only their own kind of a release: python-redis-lock by a list,
//! Spring's registry (in its mode PUB_SUB_LOCK) on a channel. Our release is no signal to them,
//! unless `wakes=` names them. A waiter there sleeps until its own bound: the lease that it
//! asked for, or, of python-redis-lock without one, for ever.

use super::{PYTHON_REDIS_LOCK, PYTHON_REDIS_LOCK_WOKEN, REGISTRY_TOLD, REGISTRY_WOKEN};
use crate::libraries::Library;
use crate::peer::{BOUND, Pending, SETTLED};
use crate::scene::Scene;
use crate::suite::{Suite, case};
use distlock::LockGuard;
use distlock_tests::probe::Probe;
use distlock_tests::time::{Stopwatch, eventually, let_pass};
use std::time::Duration;

/// For so long they sleep beside a lock that is free, to show it. Their bound is longer.
const ASLEEP: Duration = Duration::from_millis(1_500);

/// Without a lease: for ever.
static WITHOUT_LEASE: Library = Library {
    arguments: &["kind=python-redis-lock"],
    ..PYTHON_REDIS_LOCK
};

static WOKEN_WITHOUT_LEASE: Library = Library {
    arguments: WITHOUT_LEASE.arguments,
    ..PYTHON_REDIS_LOCK_WOKEN
};

/// With the registry's usual lease: a minute.
static USUAL_LEASE: Library = Library {
    arguments: &["kind=registry-pubsub"],
    ..REGISTRY_TOLD
};
static WOKEN_WITH_USUAL_LEASE: Library = Library {
    arguments: USUAL_LEASE.arguments,
    ..REGISTRY_WOKEN
};

pub(crate) fn mount(suite: &mut Suite) {
    let push = case!(python_redis_lock_waiter_hears_a_push_not_our_release);
    suite.shared(&WITHOUT_LEASE, push);
    let woken = case!(python_redis_lock_waiter_hears_our_release_with_wakes);
    suite.shared(&WOKEN_WITHOUT_LEASE, woken);
    let channel = case!(spring_waiter_hears_its_channel_not_our_release);
    suite.shared(&USUAL_LEASE, channel);
    let told = case!(spring_waiter_hears_our_release_with_wakes);
    suite.shared(&WOKEN_WITH_USUAL_LEASE, told);
}

fn python_redis_lock_waiter_hears_a_push_not_our_release(library: &'static Library) {
    hears_only(library, is_blocked, &["LPUSH", "lock-signal:lock", "1"]);
}

fn python_redis_lock_waiter_hears_our_release_with_wakes(library: &'static Library) {
    hears_us(library, is_blocked);
}

fn spring_waiter_hears_its_channel_not_our_release(library: &'static Library) {
    let signal = ["PUBLISH", "registry-channel:registry:lock", "registry:lock"];
    hears_only(library, is_listening, &signal);
}

fn spring_waiter_hears_our_release_with_wakes(library: &'static Library) {
    hears_us(library, is_listening);
}

fn is_blocked(probe: &mut Probe) -> bool {
    let blocked = probe.info_field("clients", "blocked_clients");
    blocked.is_some_and(|clients| clients == "1")
}

fn is_listening(probe: &mut Probe) -> bool {
    probe.command(&["PUBSUB", "NUMPAT"]).int() == 1
}

/// A waiter of theirs that sleeps while we have the lock.
fn asleep(scene: &Scene, is_asleep: fn(&mut Probe) -> bool) -> (LockGuard, Pending<'_>) {
    let mut probe = scene.probe();
    let guard = scene.ours.mutex("lock").lock().unwrap();
    let waiting = scene.peer.tell("t", "lock lock 0");
    eventually("it sleeps", BOUND, || is_asleep(&mut probe));
    let_pass(SETTLED);
    (guard, waiting)
}

/// A waiter of theirs sleeps through our release, and is there at once after this command.
fn hears_only(library: &'static Library, is_asleep: fn(&mut Probe) -> bool, signal: &[&str]) {
    let scene = Scene::of(library);
    let mut probe = scene.probe();
    let (guard, waiting) = asleep(&scene, is_asleep);
    guard.unlock().unwrap();
    let_pass(ASLEEP);
    assert!(!probe.exists(&library.key("lock")), "the lock is free");
    assert!(
        !waiting.is_there(),
        "it has heard of our release: docs/INTEROP.md says that it does not"
    );
    let told = Stopwatch::start();
    probe.command(signal);
    // Long before its own bound.
    waiting.ok();
    say!(
        "{}: asleep beside a free lock, there {:?} after its signal",
        library.name,
        told.elapsed()
    );
    scene.peer.ask("t", "unlock lock");
}

/// A waiter of theirs is there at once after our release, and after we have freed the lock by
/// force.
fn hears_us(library: &'static Library, is_asleep: fn(&mut Probe) -> bool) {
    let ways: [fn(&Scene, LockGuard); 2] = [
        |_, guard| guard.unlock().unwrap(),
        |scene, _guard| assert!(scene.ours.mutex("lock").force_unlock().unwrap()),
    ];
    for free in ways {
        let scene = Scene::of(library);
        let (guard, waiting) = asleep(&scene, is_asleep);
        let freed = Stopwatch::start();
        free(&scene, guard);
        // Long before its own bound.
        waiting.within(ASLEEP);
        say!(
            "{}: there {:?} after we have freed it",
            library.name,
            freed.elapsed()
        );
        scene.peer.ask("t", "unlock lock");
    }
}
