//! Kinds of locks whose hash looks like ours, and that do not tell, or do not ask, or do not nest, as RLock does.

use super::{NEWEST, REFUSED, with};
use crate::cases::steadily;
use crate::cases::waking;
use crate::libraries::{ALL_REDISSONS, Learns, Library};
use crate::peer::BOUND;
use crate::scene::Scene;
use distlock::DistLock;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms};
use std::thread;
use std::time::Duration;

static FAIR: Library = with(NEWEST, &["kind=fair"]);
static SPIN: Library = with(NEWEST, &["kind=spin"]);
static WRITE: Library = with(NEWEST, &["kind=write"]);

const LEASE: Duration = Duration::from_secs(1);

/// RFairLock keeps a queue beside its lock. With another name it has nothing to do with ours.
#[test]
fn a_fair_lock_of_another_name_does_not_collide() {
    for library in &ALL_REDISSONS {
        let Some(scene) = Scene::with(library, "", &["kind=fair"]) else { return };
        let guard = scene.ours.mutex("lock").lock().unwrap();
        scene.peer.ask("first", "lock fair 0");
        let waiting = scene.peer.tell("second", "lock fair 0");
        let mut probe = scene.probe();
        eventually("the second queues", BOUND, || {
            probe.command(&["LLEN", "redisson_lock_queue:{fair}"]).int() == 1
        });
        guard.verify().unwrap();
        guard.unlock().unwrap();
        assert!(scene.ours.mutex("lock").try_lock().unwrap().is_some());
        scene.peer.ask("first", "unlock fair");
        waiting.ok();
        scene.peer.ask("second", "unlock fair");
    }
}

/// They have the lock and give it to us, and we give it to them, who wait for so long: what each side waited for after the
/// other's release. Ours no longer than a lease.
fn passed_to_and_fro(scene: &Scene, lock: &dyn DistLock, wait: Duration) -> (Duration, Duration) {
    scene.peer.ask("t", "lock lock 0");
    assert!(lock.try_lock().unwrap().is_none());
    let ours = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = lock.try_lock_for(BOUND).unwrap().expect("they give it back");
            guard.unlock().unwrap();
        });
        let_pass(ms(100));
        assert!(!waiter.is_finished());
        let freed = Stopwatch::start();
        scene.peer.ask("t", "unlock lock");
        waiter.join().unwrap();
        freed.elapsed()
    });
    assert!(ours < LEASE + ms(500), "{ours:?}: a lease is the bound");
    let guard = lock.lock().unwrap();
    let waiting = scene.peer.tell("t", "lock lock 0");
    let_pass(wait);
    assert!(!waiting.is_there());
    let freed = Stopwatch::start();
    guard.unlock().unwrap();
    waiting.ok();
    let theirs = freed.elapsed();
    scene.peer.ask("t", "unlock lock");
    (ours, theirs)
}

/// On one name it excludes us, and we it. But it wakes nobody but the first in its queue, and we do not know that queue: both
/// sides find out when they ask again, at the end of the lease that they saw.
#[test]
fn a_fair_lock_of_the_same_name_excludes_without_waking() {
    steadily(|| {
        let Some(scene) = Scene::with(&FAIR, "watchdog=1s", &["watchdog=1000"]) else { return };
        let lock = scene.ours.mutex("lock");
        let (ours, theirs) = passed_to_and_fro(&scene, &lock, ms(100));
        say!("fair on our name: we waited {ours:?}, they {theirs:?}");
        for waited in [ours, theirs] {
            assert!(
                waited > ms(300),
                "{waited:?}: somebody was told, docs/INTEROP.md says otherwise"
            );
        }
    });
}

/// What shares our key like any RLock is held once: its second lock is refused, and ours sees one hold until its only unlock.
#[test]
fn a_non_reentrant_lock_is_one_hold_for_us() {
    let Some(scene) = Scene::with(&NEWEST, "", &["kind=non-reentrant"]) else { return };
    let lock = scene.ours.mutex("lock");
    scene.peer.ask("t", "lock lock 0");
    let refusal = scene.peer.refusal("t", "try lock 0 0");
    assert!(refusal.contains(REFUSED), "{refusal}");
    assert_eq!(lock.inspect().unwrap().holder.unwrap().holds, 1);
    assert!(lock.try_lock().unwrap().is_none());
    scene.peer.ask("t", "unlock lock");
    assert!(lock.try_lock().unwrap().is_some());
}

/// A spin lock tells nobody of its release: we find out at the end of the lease that we saw. It asks us all the time.
#[test]
fn a_spin_lock_excludes_and_is_found_free_within_a_lease() {
    steadily(|| {
        let Some(scene) = Scene::with(&SPIN, "watchdog=1s", &["watchdog=1000"]) else { return };
        let lock = scene.ours.mutex("lock");
        let (ours, theirs) = passed_to_and_fro(&scene, &lock, ms(300));
        say!("spin on our name: we waited {ours:?}, they {theirs:?}");
        assert!(theirs < ms(500), "{theirs:?}: it asks every 128 ms at least");
    });
}

/// With `poll=` we ask now and then, too.
#[test]
fn a_spin_lock_and_a_fair_one_are_found_free_within_a_poll_where_that_is_set() {
    steadily(|| {
        for (what, library) in [("spin", &SPIN), ("fair", &FAIR)] {
            let Some(scene) = Scene::with(library, "format=redisson,poll=50ms", &[]) else {
                return;
            };
            let how = Learns::Asks(Duration::from_millis(100));
            let (what, lock) = (format!("{what}, with poll=50ms"), scene.ours.mutex("lock"));
            waking::we_are_soon(&what, &scene.peer, &lock, "lock", how);
        }
    });
}

/// RReadWriteLock on the name of a lock of ours, or of an RLock: it looks for a field `mode`, finds none, and goes in. Nothing that we
/// do keeps it out. We do not go in beside it, and what it did does not make us lose what is ours.
#[test]
fn a_read_write_lock_on_a_name_of_ours_breaks_in_and_we_do_not() {
    let Some(scene) = Scene::of(&WRITE) else { return };
    let lock = scene.ours.mutex("lock");
    let guard = lock.lock().unwrap();
    assert!(
        scene.peer.ask("t", "try lock 0 0").starts_with("held"),
        "their defect: see docs/INTEROP.md"
    );
    guard.verify().unwrap();
    guard.unlock().unwrap();
    // The other way round it works: what is held we do not take.
    scene.peer.ask("t", "lock other 0");
    assert!(scene.ours.mutex("other").try_lock().unwrap().is_none());
}
