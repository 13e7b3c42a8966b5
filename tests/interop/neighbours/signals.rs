//! Those that tell their own kind of a release and nobody else: python-redis-lock by a list, Spring's registry (in its mode
//! PUB_SUB_LOCK) on a channel. Our release is no signal to them. Whoever waits there sleeps until its own bound: the lease
//! that it asked for, or, of python-redis-lock without one, for ever.

use super::{PYTHON_REDIS_LOCK, REGISTRY_TOLD};
use crate::harness::probe::Probe;
use crate::harness::time::{Stopwatch, eventually, let_pass};
use crate::libraries::Library;
use crate::peer::BOUND;
use crate::scene::Scene;
use distlock::DistLock;
use std::time::Duration;

/// For so long they sleep beside a lock that is free, to show it. Their bound is longer.
const ASLEEP: Duration = Duration::from_secs(2);

/// Between its subscription and its sleep a waiter asks once more; by then it has.
const SETTLED: Duration = Duration::from_millis(500);

/// Without a lease: for ever.
static WITHOUT_LEASE: Library =
    Library { arguments: &["kind=python-redis-lock"], ..PYTHON_REDIS_LOCK };

/// With the registry's usual lease: a minute.
static USUAL_LEASE: Library = Library { arguments: &["kind=registry-pubsub"], ..REGISTRY_TOLD };

#[test]
fn a_waiter_of_python_redis_lock_hears_a_push_to_its_list_and_not_our_release() {
    let is_asleep = |probe: &mut Probe| {
        let blocked = probe.info_field("clients", "blocked_clients");
        blocked.is_some_and(|clients| clients == "1")
    };
    hears_only(&WITHOUT_LEASE, is_asleep, &["LPUSH", "lock-signal:lock", "1"]);
}

#[test]
fn a_waiter_of_springs_registry_hears_its_channel_and_not_our_release() {
    let is_asleep = |probe: &mut Probe| probe.command(&["PUBSUB", "NUMPAT"]).int() == 1;
    let signal = ["PUBLISH", "registry-channel:registry:lock", "registry:lock"];
    hears_only(&USUAL_LEASE, is_asleep, &signal);
}

/// A waiter of theirs sleeps through our release, and is there at once after this command.
fn hears_only(library: &'static Library, is_asleep: fn(&mut Probe) -> bool, signal: &[&str]) {
    let Some(scene) = Scene::of(library) else { return };
    let mut probe = scene.probe();
    let guard = scene.ours.mutex("lock").lock().unwrap();
    let waiting = scene.peer.tell("t", "lock lock 0");
    eventually("it sleeps", BOUND, || is_asleep(&mut probe));
    let_pass(SETTLED);
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
