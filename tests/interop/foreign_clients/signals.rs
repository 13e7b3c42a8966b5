//! Libraries that notify only their own clients of a release: python-redis-lock by a list, Spring's
//! registry (in its mode PUB_SUB_LOCK) on a channel. Our release does not wake their waiters,
//! unless `wakes=` names the library. Such a waiter sleeps for the lease that it asked for; one of
//! python-redis-lock without a lease sleeps for ever.

use super::{PYTHON_REDIS_LOCK, PYTHON_REDIS_LOCK_WOKEN, REGISTRY_TOLD, REGISTRY_WOKEN};
use crate::libraries::Library;
use crate::peer::{BOUND, Pending, SETTLED};
use crate::scene::Scene;
use crate::suite::{Suite, case};
use distlock::LockGuard;
use distlock_tests::probe::Probe;
use distlock_tests::time::{Stopwatch, eventually, let_pass};
use std::time::Duration;

/// How long a waiter must sleep although the lock is free, to show that it was not woken. It would
/// sleep longer by itself.
const ASLEEP: Duration = Duration::from_millis(1_500);

/// python-redis-lock without a lease, whose waiters sleep for ever.
static WITHOUT_LEASE: Library = Library {
    arguments: &["kind=python-redis-lock"],
    ..PYTHON_REDIS_LOCK
};

static WOKEN_WITHOUT_LEASE: Library = Library {
    arguments: WITHOUT_LEASE.arguments,
    ..PYTHON_REDIS_LOCK_WOKEN
};

/// Spring's registry with its usual lease of a minute.
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

/// Returns our guard, and a waiter of the peer that sleeps because we hold the lock.
fn asleep(scene: &Scene, is_asleep: fn(&mut Probe) -> bool) -> (LockGuard, Pending<'_>) {
    let mut probe = scene.probe();
    let guard = scene.ours.mutex("lock").lock().unwrap();
    let waiting = scene.peer.tell("t", "lock lock 0");
    eventually("it sleeps", BOUND, || is_asleep(&mut probe));
    let_pass(SETTLED);
    (guard, waiting)
}

/// Checks that a waiter of the peer sleeps through our release, and returns at once after the
/// command `signal`.
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
    // Sooner than the waiter would return by itself.
    waiting.ok();
    say!(
        "{}: asleep beside a free lock, there {:?} after its signal",
        library.name,
        told.elapsed()
    );
    scene.peer.ask("t", "unlock lock");
}

/// Checks that a waiter of the peer returns at once after our release, and after a release by
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
        // Sooner than the waiter would return by itself.
        waiting.within(ASLEEP);
        say!(
            "{}: there {:?} after we have freed it",
            library.name,
            freed.elapsed()
        );
        scene.peer.ask("t", "unlock lock");
    }
}
