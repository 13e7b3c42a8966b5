//! RPermitExpirableSemaphore: both sides share the permits.

use super::with;
use crate::late::{self, retry_if_late, timely};
use crate::libraries::{Library, NEWEST};
use crate::peer::{BOUND, SETTLED};
use crate::scene::Scene;
use crate::suite::{Suite, case};
use distlock::admin::PermitId;
use distlock::{LockOptions, Semaphore};
use distlock_tests::probe::Value;
use distlock_tests::queue;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

static PERMITS: Library = with(NEWEST, &["kind=permits"]);

const NAME: &str = "lock";
const TAKEN: &str = "{lock}:timeout";

pub(crate) fn mount(suite: &mut Suite) {
    suite.shared(&PERMITS, case!(permits_are_stored_as_redisson_stores_them));
    suite.shared(
        &PERMITS,
        case!(both_sides_share_the_permits_and_their_limit),
    );
    suite.shared(
        &PERMITS,
        case!(permit_of_a_dead_holder_comes_back_to_the_other_side),
    );
    suite.shared(&PERMITS, case!(our_watchdog_keeps_a_permit_from_redisson));
    suite.shared(
        &PERMITS,
        case!(each_side_extends_and_releases_permits_of_the_other),
    );
    suite.exclusive(
        &PERMITS,
        case!(permit_waiters_of_both_sides_are_woken_at_once),
    );
}

fn semaphore(scene: &Scene, limit: u32) -> Semaphore {
    scene.ours.client.semaphore(NAME, limit).unwrap()
}

/// Each side uses the permit ID that the other side reports.
fn each_side_extends_and_releases_permits_of_the_other(library: &'static Library) {
    let scene = Scene::of(library);
    let (mut probe, mut semaphore) = (scene.probe(), semaphore(&scene, 5));
    assert_eq!(semaphore.add_permits(-1).unwrap(), 4);
    scene.peer.ask("t", "add lock -3");
    assert_eq!(semaphore.add_permits(1).unwrap(), 2);
    let mut latest = || {
        let last = probe.command(&["ZRANGE", TAKEN, "-1", "-1", "WITHSCORES"]);
        let Value::List(last) = last else {
            panic!("{last:?}")
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis();
        let end: u128 = last[1].clone().text().parse().unwrap();
        Duration::from_millis(u64::try_from(end.saturating_sub(now)).unwrap())
    };
    let (short, long) = (Duration::from_secs(600), Duration::from_secs(6_000));
    let ours = semaphore
        .acquire_with(1, &LockOptions::new().watched(short))
        .unwrap();
    let id = ours.permit_ids()[0];
    assert_eq!(
        scene.peer.ask("t", &format!("extend lock 6000000 {id}")),
        ""
    );
    assert!(latest() > short * 2, "theirs has extended ours");
    assert_eq!(scene.peer.ask("t", &format!("release lock {id}")), "true");
    assert!(ours.verify().unwrap_err().is_lost());
    assert_eq!(scene.peer.ask("t", &format!("release lock {id}")), "false");

    scene.peer.ask("t", "lock lock 600000");
    let id: PermitId = scene.peer.ask("t", "ids lock").parse().unwrap();
    assert!(latest() <= short);
    assert!(semaphore.extend_permit(id, long).unwrap());
    assert!(latest() > short * 2, "ours has extended theirs");
    assert!(semaphore.release_permit(id).unwrap());
    assert!(!semaphore.release_permit(id).unwrap());
    assert_eq!(scene.peer.ask("t", &format!("release lock {id}")), "false");
    assert_eq!(semaphore.inspect().unwrap().permits.unwrap().free, 2);
}

/// One permit of either side leaves the same keys, types, encodings and ends in the store.
fn permits_are_stored_as_redisson_stores_them(library: &'static Library) {
    let scene = Scene::of(library);
    let (mut probe, semaphore) = (scene.probe(), semaphore(&scene, 3));
    let mut stored = |what: &str| {
        let mut keys = probe.keys("*");
        keys.sort_unstable();
        let shape: Vec<_> = keys
            .iter()
            .map(|key| {
                let kind = probe.command(&["TYPE", key]).text();
                let encoding = probe.command(&["OBJECT", "ENCODING", key]).text();
                (key.clone(), kind, encoding, probe.pttl(key))
            })
            .collect();
        let id = "return #redis.call('ZRANGE', KEYS[1], 0, 0)[1]";
        let length = probe.command(&["EVAL", id, "1", TAKEN]).int();
        let ends = probe.command(&["ZRANGE", TAKEN, "0", "0", "WITHSCORES"]);
        let Value::List(ends) = ends else {
            panic!("{ends:?}")
        };
        let ends: u128 = ends[1].clone().text().parse().unwrap();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis();
        let left = ends
            .checked_sub(now)
            .unwrap_or_else(|| panic!("{what}: {ends}, {now}"));
        assert!(left <= 30_000 && left > 20_000, "{what}: {left} ms");
        let number = probe.get(NAME);
        probe.command(&["FLUSHALL"]);
        (shape, length, number)
    };
    assert_eq!(scene.peer.ask("t", "permits lock 3"), "true");
    scene.peer.ask("t", "lock lock 30000");
    let theirs = stored("theirs");
    let permit = semaphore
        .acquire_with(1, &LockOptions::new().lease(ms(30_000)))
        .unwrap();
    let ours = stored("ours");
    assert_eq!(ours, theirs);
    assert_eq!(ours.1, 16);
    assert!(permit.verify().is_err(), "it was deleted");
}

/// Each side sees which permits the other side took and released, and which limit it set.
fn both_sides_share_the_permits_and_their_limit(library: &'static Library) {
    let scene = Scene::of(library);
    let mut semaphore = semaphore(&scene, 3);
    let state = |thread| scene.peer.ask(thread, "state lock");
    let one = semaphore.acquire().unwrap();
    assert_eq!(
        state("t"),
        "free=2 taken=1 limit=3",
        "they find what we made"
    );
    scene.peer.ask("t", "lock lock 30000");
    let two = semaphore.acquire().unwrap();
    assert!(scene.peer.ask("t", "try lock 0 30000").starts_with("busy"));
    assert!(semaphore.try_acquire().unwrap().is_none());
    let theirs = scene.peer.ask("t", "ids lock");
    let info = semaphore.inspect().unwrap();
    assert_eq!((info.holders, info.permits.unwrap().free), (3, 0));
    scene.peer.ask("t", "unlock lock");
    assert_eq!(
        scene.peer.ask("t", &format!("release lock {theirs}")),
        "false"
    );
    one.unlock().unwrap();
    // Redisson can release a permit by the ID that we show, and our guard learns of it.
    let shown = semaphore
        .inspect()
        .unwrap()
        .holder
        .unwrap()
        .owner
        .as_str()
        .to_owned();
    assert_eq!(
        scene.peer.ask("t", &format!("release lock {shown}")),
        "true"
    );
    assert!(two.unlock().unwrap_err().is_lost());
    assert_eq!(state("t"), "free=3 taken=0 limit=3");
    scene.peer.ask("t", "limit lock 1");
    assert_eq!(semaphore.inspect().unwrap().permits.unwrap().limit, 1);
    assert_eq!(semaphore.set_limit(2).unwrap(), Some(1));
    assert_eq!(state("t"), "free=2 taken=0 limit=2");
}

/// A permit that is never released can be taken by the other side when its lease ends, in both
/// directions.
fn permit_of_a_dead_holder_comes_back_to_the_other_side(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::of(library);
        let semaphore = semaphore(&scene, 1);
        assert_eq!(scene.peer.ask("t", "permits lock 1"), "true");
        let since = Stopwatch::start();
        scene.peer.ask("t", "lock lock 1000");
        let permit = semaphore
            .try_acquire_for(BOUND)
            .unwrap()
            .expect("it expires");
        let waited = since.elapsed();
        timely!(
            ms(2_000),
            waited < ms(2_000),
            "{waited:?} after a lease of 1 s"
        );
        permit.unlock().unwrap();
        let brief = LockOptions::new().lease(Duration::from_secs(1));
        std::mem::forget(semaphore.acquire_with(1, &brief).unwrap());
        let taken = scene.peer.ask("t", "try lock 20000 30000");
        assert!(taken.starts_with("held"), "{taken}");
        scene.peer.ask("t", "unlock lock");
        assert_eq!(scene.peer.ask("t", "state lock"), "free=1 taken=0 limit=1");
    });
}

fn our_watchdog_keeps_a_permit_from_redisson(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "watchdog=1s", &[]);
        let semaphore = semaphore(&scene, 1);
        let permit = semaphore.acquire().unwrap();
        let waiting = scene.peer.tell("t", "try lock 3000 30000");
        let said = waiting.ok();
        timely!(ms(1_000), permit.is_valid(), "our permit was not renewed");
        assert!(said.starts_with("busy"), "{said}");
        permit.verify().unwrap();
        permit.unlock().unwrap();
        assert!(scene.peer.ask("t", "try lock 0 30000").starts_with("held"));
    });
}

/// Measures the time from a release to the return of the other side's call, in both directions.
fn permit_waiters_of_both_sides_are_woken_at_once(library: &'static Library) {
    const ROUNDS: usize = 30;
    retry_if_late(late::TURN, || {
        let scene = Scene::of(library);
        let semaphore = semaphore(&scene, 1);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let permit = semaphore.acquire().unwrap();
            let waiting = scene.peer.tell("t", "lock lock 30000");
            until_subscribed(&scene);
            assert!(!waiting.is_there());
            let freed = Stopwatch::start();
            permit.unlock().unwrap();
            waiting.ok();
            theirs.push(freed.elapsed());
            ours.push(thread::scope(|scope| {
                let waiter = scope.spawn(|| semaphore.try_acquire_for(BOUND).unwrap().unwrap());
                queue::until_one_waits(&mut scene.probe(), NAME);
                assert!(!waiter.is_finished());
                let freed = Stopwatch::start();
                scene.peer.ask("t", "unlock lock");
                waiter.join().unwrap().unlock().unwrap();
                freed.elapsed()
            }));
        }
        for (who, mut times) in [("we", ours), ("they", theirs)] {
            times.sort_unstable();
            let (half, worst) = (times[ROUNDS / 2], times[ROUNDS - 1]);
            say!(
                "permits: {who} waited {half:?} after the other side's release, {worst:?} at most"
            );
            timely!(ms(20), half < ms(20), "{who}: {half:?}");
            timely!(SETTLED, worst < SETTLED, "{who}: {worst:?}");
        }
    });
}

/// Waits until a Redisson client is subscribed and has had time to try once more.
fn until_subscribed(scene: &Scene) {
    let mut probe = scene.probe();
    eventually("a waiter subscribes", BOUND, || {
        let count = probe.command(&["PUBSUB", "NUMSUB", "redisson_sc:{lock}"]);
        matches!(count, Value::List(parts) if parts[1] != Value::Int(0))
    });
    let_pass(ms(12));
}
