//! Leases: renewed for as long as the holder lives, and over soon after its death.

use crate::cases::holding::{LOOK_AGAIN, unlock_is_refused};
use crate::held_key::HeldKey;
use crate::late::{self, late, retry_if_late, timely};
use crate::libraries::{Learns, Library};
use crate::ours::fixed;
use crate::peer::BOUND;
use crate::scene::Scene;
use distlock_tests::child::Example;
use distlock_tests::probe::Probe;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, scaled};
use lock_conformance::violated_unless;
use std::time::Duration;

/// The lease of the watchdogs of both sides.
const LEASE: Duration = Duration::from_secs(1);

/// The number of leases for which a lock is held.
const LEASES: u32 = 3;

/// How long a holder lives before it is killed: by then its first lease would be over.
const LIFE: Duration = Duration::from_millis(1_200);

/// How much later than the end of the lease a waiter may get the lock, in milliseconds. A polling
/// waiter may take its interval longer.
const SLACK: u64 = 1_000;

/// Both sides hold a lock for several leases, and neither gets the lock of the other meanwhile.
pub(crate) fn watchdogs_of_both_sides_keep_their_locks(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "watchdog=1s", &["watchdog=1000"]);
        let guard = scene.ours.mutex("ours").lock().unwrap();
        if library.has_watchdog {
            scene.peer.ask("holder", "lock theirs 0");
        }
        let theirs = scene.ours.mutex("theirs");
        let key = library.key("theirs");
        let mut held_by_them = library
            .has_watchdog
            .then(|| HeldKey::of(scene.probe(), &key));
        let held = Stopwatch::start();
        while held.elapsed() < scaled(LEASE * LEASES) {
            if let Some(key) = &mut held_by_them {
                key.must_refuse(|| theirs.try_lock().unwrap().is_some());
            }
            if !scene.peer.ask("t", "try ours 0 0").starts_with("busy") {
                violated_unless(!guard.is_valid(), "both sides have it");
                late(LEASE, "our lock was not renewed");
            }
            let_pass(LOOK_AGAIN);
        }
        assert!(guard.remaining() <= LEASE, "it was renewed");
        guard.unlock().unwrap();
        assert!(scene.peer.ask("t", "try ours 1000 0").starts_with("held"));
        if library.has_watchdog {
            let ttl = scene
                .probe()
                .pttl(&library.key("theirs"))
                .expect("it has an end");
            assert!(ttl <= LEASE, "it was renewed");
            scene.peer.ask("holder", "unlock theirs");
            assert!(theirs.try_lock_for(LEASE).unwrap().is_some());
        } else {
            say!("{}: has no watchdog", library.name);
        }
    });
}

/// After our program is killed, the peer gets its lock when the lease is over, and not before.
pub(crate) fn lock_of_our_killed_program_is_free_after_its_lease(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["watchdog=1000"]);
        let url = scene.ours.url("watchdog=1s");
        let mut holder = Example::distlock(&["hold", "--url", &url, "lock"]).spawn();
        holder.expect_event("held", BOUND);
        let (mut probe, key) = (scene.probe(), library.key("lock"));
        let mut held = HeldKey::of(scene.probe(), &key);
        let waiting = scene.peer.tell("t", "lock lock 0");
        let alive = Stopwatch::start();
        while alive.elapsed() < LIFE {
            held.must_refuse(|| waiting.is_there());
            let_pass(LOOK_AGAIN);
        }
        holder.kill();
        let dead = Stopwatch::start();
        let Some(left) = probe.pttl(&key) else {
            late(LEASE, "the holder was renewed too late")
        };
        waiting.ok();
        let what = format!("{}: our program is killed", library.name);
        must_be_in_time(&what, library.theirs, left, dead.elapsed());
        scene.peer.ask("t", "unlock lock");
    });
}

/// After the peer is killed, we get its lock when the lease is over, and not before.
pub(crate) fn lock_of_a_killed_foreign_program_is_free_after_its_lease(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["watchdog=1000"]);
        let lock = scene.ours.mutex("lock");
        // A library without a watchdog takes a lease of 3 s, and is killed during it.
        let lease = if library.has_watchdog {
            0
        } else {
            3 * LEASE.as_millis()
        };
        scene.peer.ask("t", &format!("lock lock {lease}"));
        let mut held = HeldKey::of(scene.probe(), &library.key("lock"));
        held.must_refuse_all_along(|| lock.try_lock_for(LIFE).unwrap().is_some());
        scene.peer.kill();
        let dead = Stopwatch::start();
        let left = scene.probe().pttl(&library.key("lock"));
        let Some(left) = left else {
            late(LEASE, "the holder was renewed too late")
        };
        let guard = lock.try_lock_for(BOUND).unwrap().expect("its lease ends");
        let what = format!("{}: their program is killed", library.name);
        must_be_in_time(&what, library.ours, left, dead.elapsed());
        guard.unlock().unwrap();
    });
}

/// A fixed lease ends for both sides on time, although its holder is alive.
pub(crate) fn fixed_lease_ends_for_both_sides(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::of(library);
        let (lock, mut probe, key) = (scene.ours.mutex("lock"), scene.probe(), library.key("lock"));
        let guard = lock.lock_with(&fixed(LEASE)).unwrap();
        let clock = Stopwatch::start();
        let left = left_of(&mut probe, &key);
        scene
            .peer
            .ask("t", &format!("lock lock {}", LEASE.as_millis()));
        let what = format!("{}: our lease ends", library.name);
        must_be_in_time(&what, library.theirs, left, clock.elapsed());
        assert!(!guard.is_valid());
        assert!(guard.unlock().unwrap_err().is_lost());
        let clock = Stopwatch::start();
        let left = left_of(&mut probe, &key);
        let guard = lock.try_lock_for(BOUND).unwrap().expect("their lease ends");
        let what = format!("{}: their lease ends", library.name);
        must_be_in_time(&what, library.ours, left, clock.elapsed());
        unlock_is_refused(&scene.peer, library.too_late);
        guard.unlock().unwrap();
        eventually("it is free", BOUND, || !probe.exists(&key));
    });
}

/// Returns what is left of a lease that has just begun.
fn left_of(probe: &mut Probe, key: &str) -> Duration {
    let Some(left) = probe.pttl(key) else {
        late(LEASE, "the lease is over")
    };
    assert!(left <= LEASE, "{left:?}");
    timely!(
        LEASE / 2,
        left > LEASE / 2,
        "{left:?} are left of a lease that has just begun"
    );
    left
}

/// The peer keeps a lock for two leases by extending it, and cannot extend ours.
pub(crate) fn foreign_client_extends_its_own_lock_only(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::of(library);
        let (lock, mut probe, key) = (scene.ours.mutex("lock"), scene.probe(), library.key("lock"));
        let lease = LEASE.as_millis();
        scene.peer.ask("t", &format!("lock lock {lease}"));
        let mut held = HeldKey::of(scene.probe(), &key);
        // Half a lease each time, so two leases in all.
        for _ in 0..4 {
            let_pass(LEASE / 2);
            let extended = scene
                .peer
                .tell("t", &format!("extend lock {lease}"))
                .answer(BOUND);
            timely!(
                LEASE / 2,
                extended.is_ok(),
                "extended too late: {extended:?}"
            );
            held.must_refuse(|| lock.try_lock().unwrap().is_some());
        }
        let left = probe.pttl(&key).unwrap_or_default();
        timely!(LEASE / 2, left > LEASE / 2, "it was not extended: {left:?}");
        scene.peer.ask("t", "unlock lock");

        let guard = lock
            .try_lock_for(BOUND)
            .unwrap()
            .expect("they gave it back");
        let before = probe.pttl(&key).expect("it has an end");
        let refused = scene.peer.tell("t", "extend lock 3600000").answer(BOUND);
        assert!(refused.is_err(), "they have extended what is ours");
        let after = probe.pttl(&key).expect("it is there");
        assert!(after <= before, "they have extended what is ours");
        guard.verify().unwrap();
        guard.unlock().unwrap();
    });
}

/// Checks that the waiter got the lock when the rest of the lease had passed, and little later.
/// `took` must begin before `left` was read.
#[track_caller]
pub(crate) fn must_be_in_time(what: &str, how: Learns, left: Duration, took: Duration) {
    say!("{what}: {left:?} left, free after {took:?}");
    // The server and this process round their clocks to milliseconds.
    assert!(
        took + ms(5) >= left,
        "{what}: after {took:?}, and {left:?} were left"
    );
    let bound = left + how.within(SLACK);
    timely!(
        bound,
        took <= bound,
        "{what}: {took:?}, and {left:?} were left"
    );
}
