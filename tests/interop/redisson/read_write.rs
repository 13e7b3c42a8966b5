//! RReadWriteLock: both sides exclude and wake each other, and write the same bytes.

use super::with;
use crate::late::{self, retry_if_late, timely};
use crate::libraries::{Library, NEWEST};
use crate::peer::{BOUND, Pending, SETTLED};
use crate::scene::Scene;
use crate::suite::{Suite, case};
use distlock::{DistLock, LockOptions, RwLock};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::queue;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

static READ_WRITE: Library = with(NEWEST, &["kind=read-write"]);

const CHANNEL: &str = "redisson_rwlock:{lock}";

pub(crate) fn mount(suite: &mut Suite) {
    suite.shared(
        &READ_WRITE,
        case!(read_write_lock_is_stored_as_redisson_stores_it),
    );
    suite.shared(
        &READ_WRITE,
        case!(readers_share_with_redisson_and_writers_exclude_it),
    );
    suite.shared(
        &READ_WRITE,
        case!(waiting_writer_of_ours_lets_readers_of_redisson_in),
    );
    suite.shared(
        &READ_WRITE,
        case!(dead_reader_of_redisson_ends_with_its_own_lease),
    );
    suite.shared(
        &READ_WRITE,
        case!(our_unlock_and_redissons_keep_the_others_lease),
    );
    suite.shared(
        &READ_WRITE,
        case!(downgrades_of_both_sides_let_the_others_in),
    );
    suite.exclusive(
        &READ_WRITE,
        case!(read_write_waiters_of_both_sides_are_woken_at_once),
    );
}

fn lock(scene: &Scene) -> RwLock {
    scene.ours.client.rw_lock("lock").unwrap()
}

/// Returns what is stored, with the UUID and number of each holder replaced by `OWNER`.
fn stored(probe: &mut Probe) -> BTreeMap<String, String> {
    let anonymous = |text: &str| match text.find(':').map(|at| (&text[..at], &text[at + 1..])) {
        Some((uuid, rest)) if uuid.len() == 36 => {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            format!("OWNER{}", &rest[digits..])
        }
        _ => text.to_owned(),
    };
    let hash = probe.hgetall("lock").into_iter();
    let mut all: BTreeMap<_, _> = hash
        .map(|(field, value)| (anonymous(&field), value))
        .collect();
    for key in probe.keys("*rwlock_timeout*") {
        let owner = key.strip_prefix("{lock}:").expect("Redisson's rule");
        all.insert(
            format!("{{lock}}:{}", anonymous(owner)),
            probe.get(&key).unwrap(),
        );
    }
    let kinds = ["lock", "redisson_lock_token:{lock}"];
    let others = probe
        .keys("*")
        .into_iter()
        .filter(|key| !kinds.contains(&key.as_str()));
    for key in others.filter(|key| !key.contains("rwlock_timeout")) {
        all.insert(key, String::new());
    }
    all
}

/// Both sides write the same keys and values for the same holds, with leases of about 30 s.
fn read_write_lock_is_stored_as_redisson_stores_it(library: &'static Library) {
    let scene = Scene::of(library);
    let (lock, mut probe) = (lock(&scene), scene.probe());
    let lease = LockOptions::new().lease(Duration::from_secs(30));
    let is_near = |time: Option<Duration>| time.is_some_and(|left| left > Duration::from_secs(20));
    let mut look = |what: &str| {
        let left = probe.pttl("lock");
        assert!(is_near(left), "{what}: {left:?}");
        for key in probe.keys("*rwlock_timeout*") {
            let left = probe.pttl(&key);
            assert!(is_near(left), "{what}: {key}: {left:?}");
        }
        stored(&mut probe)
    };
    scene.peer.ask("t", "lock read/lock 30000");
    let theirs = look("their reader");
    scene.peer.ask("t", "unlock read/lock");
    let guard = lock.read().lock_with(&lease).unwrap();
    let ours = look("our reader");
    guard.unlock().unwrap();
    assert_eq!(ours, theirs);
    assert_eq!(ours["mode"], "read");
    assert_eq!(ours["{lock}:OWNER:rwlock_timeout:1"], "1");

    scene.peer.ask("t", "lock write/lock 30000");
    let theirs_alone = look("their writer");
    scene.peer.ask("t", "lock read/lock 30000");
    let theirs = look("their writer that reads");
    scene.peer.ask("t", "unlock write/lock");
    let theirs_reads = look("their reader that wrote");
    scene.peer.ask("t", "unlock read/lock");
    let writing = lock.write().lock_with(&lease).unwrap();
    assert_eq!(look("our writer"), theirs_alone);
    let reading = lock.read().lock_with(&lease).unwrap();
    assert_eq!(look("our writer that reads"), theirs);
    writing.unlock().unwrap();
    assert_eq!(look("our reader that wrote"), theirs_reads);
    reading.unlock().unwrap();
    assert_eq!(scene.probe().keys("*"), ["redisson_lock_token:{lock}"]);
}

fn readers_share_with_redisson_and_writers_exclude_it(library: &'static Library) {
    let scene = Scene::of(library);
    let lock = lock(&scene);
    let ask = |line: &str| scene.peer.ask("t", line);
    let is_busy = |line: &str| ask(line).starts_with("busy");
    let reading = lock.read().lock().unwrap();
    assert!(is_busy("try write/lock 0 0"));
    ask("lock read/lock 0");
    assert_eq!(lock.read().inspect().unwrap().holders, 2);
    reading.unlock().unwrap();
    assert!(lock.write().try_lock().unwrap().is_none());
    ask("unlock read/lock");
    assert!(
        scene.probe().keys("lock").is_empty(),
        "the last reader was theirs"
    );
    let again = lock.read().lock().unwrap();
    ask("lock read/lock 0");
    ask("unlock read/lock");
    again.verify().unwrap();
    again.unlock().unwrap();
    assert!(
        scene.probe().keys("lock").is_empty(),
        "the last reader was ours"
    );
    ask("lock write/lock 0");
    assert!(lock.read().try_lock().unwrap().is_none());
    assert!(lock.write().try_lock().unwrap().is_none());
    ask("unlock write/lock");
    let writing = lock.write().lock().unwrap();
    assert!(is_busy("try read/lock 0 0") && is_busy("try write/lock 0 0"));
    assert!(lock.write().force_unlock().unwrap());
    assert!(writing.unlock().unwrap_err().is_lost());
    ask("lock read/lock 0");
    assert!(lock.read().force_unlock().unwrap());
    ask("lock write/lock 0");
    ask("unlock write/lock");
}

/// Redisson does not know the key that keeps our readers out while our writer waits.
fn waiting_writer_of_ours_lets_readers_of_redisson_in(library: &'static Library) {
    let scene = Scene::of(library);
    let lock = lock(&scene);
    let reading = lock.read().lock().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| lock.write().try_lock_for(BOUND).unwrap().is_some());
        let mut probe = scene.probe();
        eventually("our writer waits", BOUND, || {
            probe.exists("distlock_queue:2:{lock}")
        });
        let other = scope.spawn(|| lock.read().try_lock().unwrap().is_none());
        assert!(other.join().unwrap(), "it keeps our readers out");
        scene.peer.ask("t", "lock read/lock 0");
        reading.unlock().unwrap();
        scene.peer.ask("t", "unlock read/lock");
        assert!(writer.join().unwrap());
    });
}

/// The dead reader had two nested holds, and so two keys with leases of their own. A writer waits
/// for the later end.
fn dead_reader_of_redisson_ends_with_its_own_lease(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::of(library);
        let lock = lock(&scene);
        let alive = lock.read().lock().unwrap();
        scene.peer.ask("t", "lock read/lock 500");
        scene.peer.ask("t", "lock read/lock 1000");
        let since = Stopwatch::start();
        assert_eq!(lock.read().inspect().unwrap().holders, 2);
        alive.unlock().unwrap();
        let hash = scene.probe().pttl("lock").unwrap();
        assert!(hash > Duration::from_secs(10), "{hash:?}");
        let writing = lock
            .write()
            .try_lock_for(BOUND)
            .unwrap()
            .expect("it is dead");
        let waited = since.elapsed();
        timely!(
            ms(3_000),
            waited < ms(3_000),
            "{waited:?} after a lease of 1 s"
        );
        assert!(
            waited > ms(700),
            "{waited:?}: its second hold lasts a second"
        );
        writing.unlock().unwrap();
    });
}

/// When a reader unlocks, the TTL of the hash is set by the keys of the remaining holds, on both
/// sides.
fn our_unlock_and_redissons_keep_the_others_lease(library: &'static Library) {
    let scene = Scene::of(library);
    let (lock, mut probe) = (lock(&scene), scene.probe());
    let lease = LockOptions::new().lease(Duration::from_secs(20));
    let reading = lock.read().lock_with(&lease).unwrap();
    scene.peer.ask("t", "lock read/lock 60000");
    assert!(probe.pttl("lock").unwrap() > Duration::from_secs(40));
    scene.peer.ask("t", "unlock read/lock");
    let left = probe.pttl("lock").unwrap();
    assert!(
        left > Duration::from_secs(10) && left <= Duration::from_secs(20),
        "{left:?}"
    );
    reading.verify().unwrap();
    scene.peer.ask("t", "lock read/lock 60000");
    reading.unlock().unwrap();
    let left = probe.pttl("lock").unwrap();
    assert!(left > Duration::from_secs(40), "{left:?}");
    scene.peer.ask("t", "unlock read/lock");
    assert!(!probe.exists("lock"));
}

fn downgrades_of_both_sides_let_the_others_in(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::of(library);
        let (lock, mut probe) = (lock(&scene), scene.probe());
        let (writing, reading) = (lock.write().lock().unwrap(), lock.read().lock().unwrap());
        let waiting = tell_to_wait(&scene, &mut probe, "lock read/lock 30000");
        let freed = Stopwatch::start();
        writing.unlock().unwrap();
        waiting.ok();
        let theirs = freed.elapsed();
        timely!(
            SETTLED,
            theirs < SETTLED,
            "{theirs:?}: our downgrade is published"
        );
        reading.unlock().unwrap();
        scene.peer.ask("t", "unlock read/lock");

        scene.peer.ask("t", "lock write/lock 0");
        scene.peer.ask("t", "lock read/lock 0");
        thread::scope(|scope| {
            let reader = scope.spawn(|| lock.read().try_lock_for(BOUND).unwrap().is_some());
            queue::until_one_waits(&mut probe, "lock");
            assert!(!reader.is_finished());
            let freed = Stopwatch::start();
            scene.peer.ask("t", "unlock write/lock");
            assert!(reader.join().unwrap());
            let ours = freed.elapsed();
            say!("our reader came in {ours:?} after Redisson's downgrade, which is not published");
            timely!(
                ms(5_000),
                ours < ms(5_000),
                "{ours:?}: it asks again after three seconds"
            );
        });
        scene.peer.ask("t", "unlock read/lock");
    });
}

/// Measures the time from a release to the return of the other side's call, in both directions.
fn read_write_waiters_of_both_sides_are_woken_at_once(library: &'static Library) {
    const ROUNDS: usize = 30;
    retry_if_late(late::TURN, || {
        let scene = Scene::of(library);
        let (lock, mut probe) = (lock(&scene), scene.probe());
        for (held, wanted) in [("read", "write"), ("write", "read"), ("write", "write")] {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            let half = |name: &str| -> &dyn DistLock {
                if name == "read" {
                    lock.read()
                } else {
                    lock.write()
                }
            };
            for _ in 0..ROUNDS {
                let guard = half(held).lock().unwrap();
                let line = format!("lock {wanted}/lock 30000");
                let waiting = tell_to_wait(&scene, &mut probe, &line);
                let freed = Stopwatch::start();
                guard.unlock().unwrap();
                waiting.ok();
                theirs.push(freed.elapsed());
                scene.peer.ask("t", &format!("unlock {wanted}/lock"));
                scene.peer.ask("t", &format!("lock {held}/lock 30000"));
                ours.push(thread::scope(|scope| {
                    let waiter = scope.spawn(|| {
                        half(wanted)
                            .try_lock_for(BOUND)
                            .unwrap()
                            .unwrap()
                            .unlock()
                            .unwrap();
                    });
                    queue::until_one_waits(&mut probe, "lock");
                    assert!(!waiter.is_finished());
                    let freed = Stopwatch::start();
                    scene.peer.ask("t", &format!("unlock {held}/lock"));
                    waiter.join().unwrap();
                    freed.elapsed()
                }));
            }
            for (who, mut times) in [("we", ours), ("they", theirs)] {
                times.sort_unstable();
                let (half, worst) = (times[ROUNDS / 2], times[ROUNDS - 1]);
                say!(
                    "{wanted} after {held}: {who} waited {half:?} after the other side's release, \
                     {worst:?} at most"
                );
                timely!(ms(20), half < ms(20), "{who}: {half:?}");
                timely!(SETTLED, worst < SETTLED, "{who}: {worst:?}");
            }
        }
    });
}

/// Has Redisson wait for a busy lock, and returns when its thread sleeps. Between its second
/// attempt and its sleep the thread may miss the message of a writer.
fn tell_to_wait<'a>(scene: &'a Scene, probe: &mut Probe, line: &str) -> Pending<'a> {
    let asked = scripts(probe);
    let waiting = scene.peer.tell("t", line);
    until_subscribed(probe);
    eventually("it asks again", BOUND, || scripts(probe) >= asked + 2);
    let_pass(ms(30));
    assert!(!waiting.is_there());
    waiting
}

fn scripts(probe: &mut Probe) -> u64 {
    probe.command_calls("eval") + probe.command_calls("evalsha")
}

/// Waits until a Redisson client is subscribed and has had time to try once more.
fn until_subscribed(probe: &mut Probe) {
    eventually("a waiter subscribes", BOUND, || {
        let count = probe.command(&["PUBSUB", "NUMSUB", CHANNEL]);
        matches!(count, Value::List(parts) if parts[1] != Value::Int(0))
    });
    let_pass(ms(12));
}
