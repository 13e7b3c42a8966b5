//! A waiter soon gets a lock that the other side has released.

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

/// How many changes precede these without being measured: a JVM compiles code that has run a few
/// times.
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
/// The bound in milliseconds on each change. A waiter that no release wakes returns after the lease
/// of 30 s.
const ALL: u64 = 10_000;

/// The median, the 99th percentile and the maximum of the measured times.
struct Figures {
    half: Duration,
    most: Duration,
    worst: Duration,
}

/// Measures the time from our release to the return of the peer's call.
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

/// Measures the time from the peer's release to the return of our call.
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

/// Measures changes in both directions on any store, where releases notify both sides.
pub(crate) fn both_are_soon(what: &str, peer: &Peer, lock: &dyn DistLock, name: &str) {
    they_are_soon(what, peer, lock, name, Learns::Told);
    we_are_soon(what, peer, lock, name, Learns::Told);
}

/// Measures changes from us to the peer on any store: `lock` is ours, and `name` is its name in the
/// peer.
pub(crate) fn they_are_soon(what: &str, peer: &Peer, lock: &dyn DistLock, name: &str, how: Learns) {
    let (times, late) = with_lateness(|| in_rows(how, || to_them(peer, lock, name, how)));
    must_be_soon(
        &format!("{what}: we release, they return"),
        how,
        times,
        late.longest,
    );
}

/// Measures changes from the peer to us on any store.
pub(crate) fn we_are_soon(what: &str, peer: &Peer, lock: &dyn DistLock, name: &str, how: Learns) {
    let (times, late) = with_lateness(|| in_rows(how, || to_us(peer, lock, name, how)));
    must_be_soon(
        &format!("{what}: they release, we return"),
        how,
        times,
        late.longest,
    );
}

/// Makes one change from us to the peer. Returns the time from before our release to the return of
/// the peer's call.
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

/// Makes one change from the peer to us. Returns the time from before the order to release to the
/// return of our call.
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

/// Returns what a call returned. On a late machine it may fail, because its answer comes after the
/// command timeout.
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
    // The test fails at the first slow change: otherwise it could wait for dozens of leases.
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

/// Checks these times. The bounds are extended by `late`, the lateness of a thread that only kept
/// time meanwhile: a change takes two processes and the server, each of which waits for a
/// processor.
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

/// Returns the time of day, because other programs can read the same clock.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is after 1970")
}
