//! [`fairly`]: a test of times has a second chance where the machine did not keep its own.

use crate::clock::{Clock, Moment, SystemClock};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
#[cfg(target_os = "linux")]
use rustix::thread::CpuSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

/// How often it is seen whether threads are woken in time.
const BEAT: Duration = Duration::from_millis(5);

/// On so many processors at most: where there are more, one of them is always late, and others have time.
#[cfg(target_os = "linux")]
const TIMEKEEPERS: usize = 4;

/// How late a thread may be woken on a machine that has time for its tests.
const UNFAIR: Duration = Duration::from_millis(20);

/// Runs a test of times, and once more if it fails while the machine kept a thread waiting that does nothing but keep
/// time: twice at most, and says so. On a machine that keeps its time a failure is a failure.
///
/// # Panics
///
/// As the test does.
pub fn fairly<T>(test: impl FnMut() -> T) -> T {
    fairly_beyond(UNFAIR, test)
}

/// The same where only a thread that is later than this excuses a failure: for tests of what must hold, in which less is
/// no excuse.
///
/// # Panics
///
/// As the test does.
pub fn fairly_beyond<T>(excuse: Duration, mut test: impl FnMut() -> T) -> T {
    for _ in 0..2 {
        let (outcome, late) = with_lateness(|| catch_unwind(AssertUnwindSafe(&mut test)));
        match outcome {
            Ok(result) => return result,
            Err(_) if late > excuse => {
                println!("a thread that only keeps time was {late:.1?} late: once more");
            }
            Err(panic) => resume_unwind(panic),
        }
    }
    test()
}

/// How late a thread that only keeps time was at most while `work` ran, from before it was there: the latest of one on
/// each processor (four at most), each of which may be taken away by itself.
pub fn with_lateness<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    // Disconnected when the work is done, also in a panic: who waits for that would wait for ever.
    let (running, ended) = bounded::<()>(0);
    let start = SystemClock.now();
    thread::scope(|scope| {
        let timekeepers: Vec<_> = processors()
            .into_iter()
            .map(|processor| {
                let ended = ended.clone();
                scope.spawn(move || {
                    stay_on(processor);
                    keep_time(start, &ended)
                })
            })
            .collect();
        let result = work();
        drop(running);
        let late = timekeepers.into_iter().map(|it| it.join().expect("it only keeps time"));
        (result, late.max().unwrap_or_default())
    })
}

/// Until this is ended: how late it was at most.
fn keep_time(start: Moment, ended: &Receiver<()>) -> Duration {
    let (mut due, mut lateness) = (start, Duration::ZERO);
    loop {
        lateness = lateness.max(SystemClock.now().since(due));
        due = SystemClock.now() + BEAT;
        if ended.recv_timeout(BEAT) != Err(RecvTimeoutError::Timeout) {
            return lateness.max(SystemClock.now().since(due));
        }
    }
}

/// Those that this thread may run on, by their numbers, or some of them.
#[cfg(target_os = "linux")]
fn processors() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None);
    let numbers = |set: CpuSet| (0..CpuSet::MAX_CPU).filter(move |it| set.is_set(*it));
    let allowed = allowed.map(|set| numbers(set).take(TIMEKEEPERS).collect());
    allowed.ok().filter(|it: &Vec<usize>| !it.is_empty()).unwrap_or_else(|| vec![0])
}

/// Whoever is not bound to one finds a processor where there is time for it.
#[cfg(target_os = "linux")]
fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    let _or_anywhere = rustix::thread::sched_setaffinity(None, &set);
}

#[cfg(not(target_os = "linux"))]
fn processors() -> Vec<usize> {
    vec![0]
}

#[cfg(not(target_os = "linux"))]
fn stay_on(_: usize) {}
