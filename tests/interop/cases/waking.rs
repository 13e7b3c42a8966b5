//! A waiter soon gets what the other side released.

use crate::held_key::SHORTEST;
use crate::late::{self, late, retry_if_late, timely};
use crate::libraries::{Learns, Library};
use crate::peer::{BOUND, Peer};
use crate::scene::Scene;
use distlock::{Config, DistLock, Error};
use distlock_tests::time::{Stopwatch, let_pass};
use lock_conformance::{violated_unless, with_lateness};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often the lock changes sides in one direction.
const TIMES: usize = 50;

/// And before that, not counted: a JVM compiles what it has done a few times.
const WARM: usize = 10;

/// A polling waiter is measured for about this long, and five times at least.
const LONG: Duration = Duration::from_secs(2);

/// How long a notified waiter waits before the release: by then it has tried, subscribed and tried
/// again. A polling waiter waits for a random part of its interval more.
const TOLD: Duration = Duration::from_millis(12);

/// The bounds in milliseconds on the median and on the 99th percentile. Measured: see
/// `docs/INTEROP.md`.
const HALF: u64 = 20;
const MOST: u64 = 200;
/// The bound on each change: a waiter that no release tells returns after the lease of 30 s.
const ALL: u64 = 10_000;

/// Half and almost all of what was measured.
struct Figures {
    half: Duration,
    most: Duration,
    worst: Duration,
}

/// How long it takes from a release of ours to the return of their call.
pub(crate) fn foreign_waiter_gets_our_released_lock_at_once(library: &'static Library) {
    retry_if_late(late::TURN, || {
        let scene = Scene::of(library);
        they_are_soon(
            library.name,
            &scene.peer,
            &scene.ours.mutex("lock"),
            "lock",
            library.theirs,
        );
    });
}

/// And the other way round.
pub(crate) fn our_waiter_gets_a_foreign_released_lock_at_once(library: &'static Library) {
    retry_if_late(late::TURN, || {
        let scene = Scene::of(library);
        we_are_soon(
            library.name,
            &scene.peer,
            &scene.ours.mutex("lock"),
            "lock",
            library.ours,
        );
    });
}

/// Both ways where both are told, on any store.
pub(crate) fn both_are_soon(what: &str, peer: &Peer, lock: &dyn DistLock, name: &str) {
    they_are_soon(what, peer, lock, name, Learns::Told);
    we_are_soon(what, peer, lock, name, Learns::Told);
}

/// From us to them, on any store: our lock, and the name that they know it by.
pub(crate) fn they_are_soon(what: &str, peer: &Peer, lock: &dyn DistLock, name: &str, how: Learns) {
    let (times, late) = with_lateness(|| in_rows(how, || to_them(peer, lock, name, how)));
    must_be_soon(
        &format!("{what}: we release, they return"),
        how,
        times,
        late.longest,
    );
}

/// From them to us, on any store.
pub(crate) fn we_are_soon(what: &str, peer: &Peer, lock: &dyn DistLock, name: &str, how: Learns) {
    let (times, late) = with_lateness(|| in_rows(how, || to_us(peer, lock, name, how)));
    must_be_soon(
        &format!("{what}: they release, we return"),
        how,
        times,
        late.longest,
    );
}

/// One change from us to them: from before our release to the return of their call.
pub(crate) fn to_them(peer: &Peer, lock: &dyn DistLock, name: &str, how: Learns) -> Duration {
    let guard = in_time(lock.try_lock_for(BOUND));
    let lease = guard.remaining();
    let waiting = peer.tell("waiter", &format!("lock {name} 0"));
    let_pass(before_release(how));
    violated_unless(
        !waiting.is_there() || !guard.is_valid(),
        "both sides have it",
    );
    timely!(
        lease,
        guard.is_valid() && !waiting.is_there(),
        "our lock was not renewed"
    );
    let released = now();
    in_time(guard.unlock().map(Some));
    let returned = waiting.ok().parse().map(Duration::from_micros).unwrap();
    peer.ask("waiter", &format!("unlock {name}"));
    returned.saturating_sub(released)
}

/// One change from them to us: from before they are told to release to the return of our call.
pub(crate) fn to_us(peer: &Peer, lock: &dyn DistLock, name: &str, how: Learns) -> Duration {
    let asked = Stopwatch::start();
    peer.ask("holder", &format!("lock {name} 0"));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = lock.try_lock_for(BOUND)?.expect("they give it back");
            let returned = now();
            guard.unlock()?;
            Ok(Some(returned))
        });
        let_pass(before_release(how));
        if waiter.is_finished() {
            let _returned = in_time(waiter.join().unwrap());
            violated_unless(asked.elapsed() >= SHORTEST, "it was granted to both sides");
            late(SHORTEST, "their lock was not renewed");
        }
        let released = now();
        peer.ask("holder", &format!("unlock {name}"));
        in_time(waiter.join().unwrap()).saturating_sub(released)
    })
}

/// What a call returned. On a late machine an answer may come after the command timeout.
#[track_caller]
fn in_time<T>(outcome: Result<Option<T>, Error>) -> T {
    match outcome {
        Ok(result) => result.expect("they give it back"),
        Err(error) if error.is_unavailable() => {
            late(Config::DEFAULT_COMMAND_TIMEOUT, error.to_string())
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// Repeats a change; fewer times with a waiter that polls seldom.
fn in_rows(how: Learns, mut once: impl FnMut() -> Duration) -> Vec<Duration> {
    let (warm, times) = match how {
        Learns::Told => (WARM, TIMES),
        Learns::Asks(every) => (1, (LONG.div_duration_f32(every) as usize).clamp(5, TIMES)),
    };
    // At once, or a hundred leases would be waited for one after the other.
    let mut soon = || {
        let took = once();
        timely!(
            how.within(ALL),
            took <= how.within(ALL),
            "{took:?}: was the waiter not told?"
        );
        took
    };
    for _ in 0..warm {
        soon();
    }
    (0..times).map(|_| soon()).collect()
}

/// The bounds are longer by what a thread that only keeps time was `late` meanwhile: a change takes
/// two processes and the server, each of which waits for a processor.
fn must_be_soon(what: &str, how: Learns, times: Vec<Duration>, late: Duration) {
    let (count, figures) = (times.len(), Figures::of(times));
    let Figures { half, most, worst } = figures;
    say!("{what}: of {count} p50 {half:?}, p99 {most:?}, at most {worst:?}; late by {late:?}");
    timely!(
        how.within(HALF),
        half <= how.within(HALF) + late,
        "{what}: {half:?} is too long"
    );
    timely!(
        how.within(MOST),
        most <= how.within(MOST) + late * 2,
        "{what}: {most:?} is too long"
    );
}

impl Figures {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        Self {
            half: at(50),
            most: at(99),
            worst: at(100),
        }
    }
}

fn before_release(how: Learns) -> Duration {
    match how {
        Learns::Told => TOLD,
        Learns::Asks(every) => TOLD + every.mul_f64(fastrand::f64()),
    }
}

/// The time of day, which other programs have, too.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is after 1970")
}
