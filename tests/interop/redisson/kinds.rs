//! Kinds of Redisson's locks whose hash looks like ours, but that do not all notify, check the
//! holder or nest as RLock does.

use super::{NEWEST, REFUSED};
use crate::cases::holding::until_it_sleeps;
use crate::cases::waking;
use crate::held_key::HeldKey;
use crate::late::{self, retry_if_late, timely};
use crate::libraries::{ALL_REDISSONS, Learns, Library};
use crate::peer::{BOUND, SETTLED};
use crate::scene::Scene;
use crate::suite::{Permit, Suite, case};
use distlock::DistLock;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms};
use lock_conformance::violated_unless;
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

static FAIR: Library = Library {
    id: "fair",
    arguments: &["kind=fair"],
    ..NEWEST
};
static SPIN: Library = Library {
    id: "spin",
    arguments: &["kind=spin"],
    ..NEWEST
};
static WRITE: Library = Library {
    id: "write",
    arguments: &["kind=write"],
    ..NEWEST
};
static ONCE: Library = Library {
    id: "once",
    arguments: &["kind=non-reentrant"],
    ..NEWEST
};

/// The lease of both watchdogs. At least half of it is left when the first waiter sleeps.
const LEASE: Duration = Duration::from_secs(2);

pub(crate) fn mount(suite: &mut Suite) {
    let fair = case!(fair_lock_of_a_different_name_does_not_collide);
    suite.each(Permit::Shared, &ALL_REDISSONS, fair);
    suite.shared(
        &FAIR,
        case!(fair_lock_of_the_same_name_excludes_without_being_woken),
    );
    suite.shared(
        &NEWEST,
        case!(label_beside_our_lock_leaves_the_hash_as_redisson_has_it),
    );
    let both = case!(our_fair_lock_and_theirs_exclude_each_other);
    suite.each(Permit::Shared, [&FAIR, &NEWEST], both);
    suite.shared(&ONCE, case!(non_reentrant_lock_is_a_single_hold));
    suite.shared(
        &SPIN,
        case!(spin_lock_excludes_and_is_found_free_within_a_lease),
    );
    let poll = case!(spin_and_fair_locks_are_found_free_within_a_set_poll);
    suite.each(Permit::Shared, [&SPIN, &FAIR], poll);
    suite.shared(
        &WRITE,
        case!(read_write_lock_breaks_into_our_lock_ours_does_not),
    );
}

/// The queue of an RFairLock does not affect our lock of another name.
fn fair_lock_of_a_different_name_does_not_collide(library: &'static Library) {
    let scene = Scene::with(library, "", &["kind=fair"]);
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

/// Our label is in a key of its own, so the hash contains only the holder's field, ours or
/// Redisson's. A label that our client left behind is not shown for Redisson's hold.
fn label_beside_our_lock_leaves_the_hash_as_redisson_has_it(library: &'static Library) {
    let scene = Scene::with(library, "owner=till-7", &[]);
    let (lock, mut probe) = (scene.ours.mutex("lock"), scene.probe());
    let guard = lock.lock().unwrap();
    eventually("it is renewed", BOUND, || {
        probe.exists("distlock_owner:{lock}")
    });
    let holder = || lock.inspect().unwrap().holder.expect("it is held");
    assert_eq!(&*holder().label.expect("it has one").text, "till-7");
    let is_only_field = |stored: BTreeMap<String, String>| {
        let field = (holder().owner.as_str().to_owned(), "1".to_owned());
        stored.into_iter().eq([field])
    };
    assert!(is_only_field(probe.hgetall("lock")));
    guard.unlock().unwrap();
    scene.peer.ask("t", "lock lock 0");
    assert!(
        probe.exists("distlock_owner:{lock}"),
        "until its lease ends"
    );
    assert!(is_only_field(probe.hgetall("lock")));
    assert_eq!(holder().label, None);
    scene.peer.ask("t", "unlock lock");
    assert!(lock.inspect().unwrap().holder.is_none());
}

/// Passes the lock from Redisson to us, and back. Returns how long each side, ours first, waited
/// after the other's release. Ours may not wait longer than a lease. `settled` returns when
/// Redisson's waiter waits.
fn passed_to_and_fro(scene: &Scene, settled: impl Fn(&Scene)) -> (Duration, Duration) {
    let lock = &scene.ours.mutex("lock") as &dyn DistLock;
    scene.peer.ask("t", "lock lock 0");
    let mut held = HeldKey::of(scene.probe(), "lock");
    held.must_refuse(|| lock.try_lock().unwrap().is_some());
    let ours = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = lock
                .try_lock_for(BOUND)
                .unwrap()
                .expect("they give it back");
            guard.unlock().unwrap();
        });
        let_pass(ms(100));
        held.must_refuse(|| waiter.is_finished());
        let freed = Stopwatch::start();
        scene.peer.ask("t", "unlock lock");
        waiter.join().unwrap();
        freed.elapsed()
    });
    timely!(
        LEASE + ms(500),
        ours < LEASE + ms(500),
        "{ours:?}: a lease is the bound"
    );
    let mut probe = scene.probe();
    eventually(
        "ours listens no more, so what listens is theirs",
        BOUND,
        || probe.command(&["PUBSUB", "CHANNELS"]).texts().is_empty(),
    );
    let guard = lock.lock().unwrap();
    let waiting = scene.peer.tell("t", "lock lock 0");
    settled(scene);
    violated_unless(
        !waiting.is_there() || !guard.is_valid(),
        "both sides have it",
    );
    timely!(LEASE, !waiting.is_there(), "our lock was not renewed");
    let freed = Stopwatch::start();
    guard.unlock().unwrap();
    waiting.ok();
    let theirs = freed.elapsed();
    scene.peer.ask("t", "unlock lock");
    (ours, theirs)
}

/// RFairLock and our lock of the same name exclude each other, but RFairLock wakes only the first
/// waiter in its own queue. Our waiter learns of its release because the server reports the changed
/// key. Redisson's waiter tries again at the end of the lease that it saw.
fn fair_lock_of_the_same_name_excludes_without_being_woken(library: &'static Library) {
    // Several rounds: a release just before a waiter's attempt behind its subscription needs no
    // wake-up.
    const ROUNDS: usize = 5;
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "watchdog=2s", &["watchdog=2000"]);
        let slept = (0..ROUNDS).any(|_| {
            let (ours, theirs) = passed_to_and_fro(&scene, until_it_sleeps);
            say!("fair on our name: we waited {ours:?}, they {theirs:?}");
            timely!(
                SETTLED,
                ours < SETTLED,
                "{ours:?}: the server reports the change"
            );
            theirs > ms(200)
        });
        timely!(
            SETTLED,
            slept,
            "told each time, docs/INTEROP.md says otherwise"
        );
    });
}

/// Two separate queues for one lock. The head of ours tries each second, and so learns of
/// Redisson's release. RLock is notified of our release, and RFairLock is not.
fn our_fair_lock_and_theirs_exclude_each_other(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "watchdog=2s&order=fair", &["watchdog=2000"]);
        let (ours, theirs) = passed_to_and_fro(&scene, until_it_sleeps);
        let what = library.id;
        say!("{what} beside our fair lock: we waited {ours:?}, they {theirs:?}");
        timely!(
            ms(1_500),
            ours < ms(1_500),
            "{ours:?}: ours asks each second"
        );
        // At least two thirds of a lease are left, for which a waiter without a notification would
        // wait.
        let told = what == FAIR.id || theirs < LEASE / 3;
        timely!(LEASE / 3, told, "{theirs:?}: RLock is told of our release");
    });
}

/// A non-reentrant lock shares our key as RLock does, but its second lock is refused: our client
/// sees one hold until its only unlock.
fn non_reentrant_lock_is_a_single_hold(library: &'static Library) {
    let scene = Scene::of(library);
    let lock = scene.ours.mutex("lock");
    scene.peer.ask("t", "lock lock 0");
    let refusal = scene.peer.refusal("t", "try lock 0 0");
    assert!(refusal.contains(REFUSED), "{refusal}");
    assert_eq!(lock.inspect().unwrap().holder.unwrap().holds, 1);
    assert!(lock.try_lock().unwrap().is_none());
    scene.peer.ask("t", "unlock lock");
    assert!(lock.try_lock().unwrap().is_some());
}

/// The release of a spin lock notifies no waiter, so ours tries again at the end of the lease that
/// it saw. A spin lock itself polls all the time.
fn spin_lock_excludes_and_is_found_free_within_a_lease(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "watchdog=2s", &["watchdog=2000"]);
        let (ours, theirs) = passed_to_and_fro(&scene, |_| let_pass(ms(300)));
        say!("spin on our name: we waited {ours:?}, they {theirs:?}");
        timely!(
            ms(500),
            theirs < ms(500),
            "{theirs:?}: it asks every 128 ms at least"
        );
    });
}

/// With `poll=` our waiter polls, and finds a released lock sooner than at the end of a lease.
fn spin_and_fair_locks_are_found_free_within_a_set_poll(library: &'static Library) {
    retry_if_late(late::TURN, || {
        let scene = Scene::with(library, "format=redisson,poll=50ms&tracking=off", &[]);
        let how = Learns::Asks(Duration::from_millis(100));
        let (what, lock) = (
            format!("{}, with poll=50ms", library.id),
            scene.ours.mutex("lock"),
        );
        waking::we_are_soon(&what, &scene.peer, &lock, "lock", how);
    });
}

/// RReadWriteLock on the name of our lock, or of an RLock, looks for a field `mode`, finds none,
/// and grants the lock. Nothing that we do prevents that. Our client does not get a lock that
/// RReadWriteLock holds, and does not lose its own lock by that.
fn read_write_lock_breaks_into_our_lock_ours_does_not(library: &'static Library) {
    let scene = Scene::of(library);
    let lock = scene.ours.mutex("lock");
    let guard = lock.lock().unwrap();
    let said = scene.peer.ask("t", "try lock 0 0");
    assert!(
        said.starts_with("held"),
        "their defect: see docs/INTEROP.md"
    );
    guard.verify().unwrap();
    guard.unlock().unwrap();
    // The other way round the lock excludes: our client does not get a lock that is held.
    scene.peer.ask("t", "lock other 0");
    assert!(scene.ours.mutex("other").try_lock().unwrap().is_none());
}
