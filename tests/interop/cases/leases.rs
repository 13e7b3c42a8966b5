//! Leases: kept for as long as a holder lives, and over when it is dead.

use crate::cases::holding::unlock_is_refused;
use crate::libraries::{Learns, Library};
use crate::ours::fixed;
use crate::peer::BOUND;
use crate::scene::Scene;
use distlock::DistLock;
use distlock_tests::child::Example;
use distlock_tests::time::{Stopwatch, always, eventually, let_pass, ms, scaled};
use std::time::Duration;

/// Of the watchdogs of both sides.
const LEASE: Duration = Duration::from_secs(1);

/// For so many of them a lock is held.
const LEASES: u32 = 4;

/// How much later than the lease's end a waiter may have the lock: one who asks now and then, by its time more.
const SLACK: u64 = 1_000;

/// Both sides hold a lock for several leases, and neither can have the other's meanwhile.
pub(crate) fn the_watchdogs_of_both_keep_their_locks(library: &'static Library) {
    let Some(scene) = Scene::with(library, "watchdog=1s", &["watchdog=1000"]) else { return };
    let guard = scene.ours.mutex("ours").lock().unwrap();
    if library.has_watchdog {
        scene.peer.ask("holder", "lock theirs 0");
    }
    let theirs = scene.ours.mutex("theirs");
    always("each keeps its own", LEASE * LEASES, || {
        let is_free = library.has_watchdog && theirs.try_lock().unwrap().is_some();
        scene.peer.ask("t", "try ours 0 0").starts_with("busy") && !is_free
    });
    assert!(guard.remaining() <= LEASE, "it was renewed");
    guard.unlock().unwrap();
    assert!(scene.peer.ask("t", "try ours 1000 0").starts_with("held"));
    if library.has_watchdog {
        let ttl = scene.probe().pttl(&library.key("theirs")).expect("it has an end");
        assert!(ttl <= LEASE, "it was renewed");
        scene.peer.ask("holder", "unlock theirs");
        assert!(theirs.try_lock_for(LEASE).unwrap().is_some());
    } else {
        say!("{}: has no watchdog", library.name);
    }
}

/// A program of ours is killed: they have its lock when its lease is over, and not before.
pub(crate) fn what_a_killed_program_of_ours_held_is_theirs_after_its_lease(
    library: &'static Library,
) {
    let Some(scene) = Scene::with(library, "", &["watchdog=1000"]) else { return };
    let url = scene.ours.url("watchdog=1s");
    let mut holder = Example::new("hold").args(&["--url", &url, "--name", "lock"]).spawn();
    holder.expect_event("held", BOUND);
    let waiting = scene.peer.tell("t", "lock lock 0");
    let_pass(LEASE.mul_f64(1.5));
    assert!(!waiting.is_there(), "the holder lives");
    let (mut probe, key) = (scene.probe(), library.key("lock"));
    holder.kill();
    let dead = Stopwatch::start();
    let left = probe.pttl(&key).expect("a dead holder's lock is there until its lease ends");
    waiting.ok();
    must_be_in_time(
        &format!("{}: our program is killed", library.name),
        library.theirs,
        left,
        dead.elapsed(),
    );
    scene.peer.ask("t", "unlock lock");
}

/// Their program is killed: we have its lock when its lease is over, and not before.
pub(crate) fn what_a_killed_program_of_theirs_held_is_ours_after_its_lease(
    library: &'static Library,
) {
    let Some(scene) = Scene::with(library, "", &["watchdog=1000"]) else { return };
    let lock = scene.ours.mutex("lock");
    // Who has no watchdog holds it for three leases, and lives for one and a half.
    let lease = if library.has_watchdog { 0 } else { 3 * LEASE.as_millis() };
    scene.peer.ask("t", &format!("lock lock {lease}"));
    assert!(lock.try_lock_for(LEASE.mul_f64(1.5)).unwrap().is_none(), "the holder lives");
    scene.peer.kill();
    let dead = Stopwatch::start();
    let left = scene.probe().pttl(&library.key("lock"));
    let left = left.expect("a dead holder's lock is there until its lease ends");
    let guard = lock.try_lock_for(BOUND).unwrap().expect("its lease ends");
    must_be_in_time(
        &format!("{}: their program is killed", library.name),
        library.ours,
        left,
        dead.elapsed(),
    );
    guard.unlock().unwrap();
}

/// A fixed lease ends for both sides when it ends, with the holder alive.
pub(crate) fn a_fixed_lease_ends_for_both(library: &'static Library) {
    let Some(scene) = Scene::of(library) else { return };
    let (lock, mut probe, key) = (scene.ours.mutex("lock"), scene.probe(), library.key("lock"));
    let guard = lock.lock_with(&fixed(LEASE)).unwrap();
    let ours = probe.pttl(&key).expect("it has an end");
    assert!(ours <= LEASE && ours > LEASE / 2, "{ours:?}");
    let clock = Stopwatch::start();
    scene.peer.ask("t", &format!("lock lock {}", LEASE.as_millis()));
    must_be_in_time(
        &format!("{}: our lease ends", library.name),
        library.theirs,
        ours,
        clock.elapsed(),
    );
    assert!(!guard.is_valid());
    assert!(guard.unlock().unwrap_err().is_lost());
    let theirs = probe.pttl(&key).expect("it has an end");
    assert!(theirs <= LEASE && theirs > LEASE / 2, "{theirs:?}");
    let clock = Stopwatch::start();
    let guard = lock.try_lock_for(BOUND).unwrap().expect("their lease ends");
    must_be_in_time(
        &format!("{}: their lease ends", library.name),
        library.ours,
        theirs,
        clock.elapsed(),
    );
    unlock_is_refused(&scene.peer, library.too_late);
    guard.unlock().unwrap();
    eventually("it is free", BOUND, || !probe.exists(&key));
}

/// What they extend again and again they keep for several leases; ours they cannot extend.
pub(crate) fn what_they_extend_is_theirs(library: &'static Library) {
    let Some(scene) = Scene::of(library) else { return };
    let (lock, mut probe, key) = (scene.ours.mutex("lock"), scene.probe(), library.key("lock"));
    let lease = LEASE.as_millis();
    scene.peer.ask("t", &format!("lock lock {lease}"));
    // Two leases and a half.
    for _ in 0..5 {
        let_pass(LEASE / 2);
        scene.peer.ask("t", &format!("extend lock {lease}"));
        assert!(lock.try_lock().unwrap().is_none(), "it is theirs");
    }
    assert!(probe.pttl(&key).expect("it has an end") > LEASE / 2, "it was extended");
    scene.peer.ask("t", "unlock lock");

    let guard = lock.try_lock_for(BOUND).unwrap().expect("they gave it back");
    let before = probe.pttl(&key).expect("it has an end");
    let refused = scene.peer.tell("t", "extend lock 3600000").answer(BOUND);
    assert!(refused.is_err(), "they have extended what is ours");
    assert!(probe.pttl(&key).expect("it is there") <= before, "they have extended what is ours");
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// What was left of the lease is waited out, and little more.
#[track_caller]
pub(crate) fn must_be_in_time(what: &str, how: Learns, left: Duration, took: Duration) {
    say!("{what}: {left:?} left, free after {took:?}");
    let asks = if let Learns::Asks(every) = how { every } else { Duration::ZERO };
    assert!(took <= left + scaled(asks) + ms(SLACK), "{what}: {took:?}, and {left:?} were left");
    // Both clocks, and a look between them.
    assert!(took + ms(50) >= left, "{what}: after {took:?}, and {left:?} were left");
}
