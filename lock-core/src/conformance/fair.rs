//! [`fairly`]: a test of times has a second chance where the machine did not keep its own.

use crate::clock::{Clock, SystemClock};
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

/// How often it is seen whether threads are woken in time.
const BEAT: Duration = Duration::from_millis(5);

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

/// How late a thread that only keeps time was at most while `work` ran.
fn with_lateness<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    // Disconnected when the work is done, also in a panic: who waits for that would wait for ever.
    let (running, ended) = bounded::<()>(0);
    thread::scope(|scope| {
        let timekeeper = scope.spawn(move || {
            let mut lateness = Duration::ZERO;
            loop {
                let due = SystemClock.now() + BEAT;
                if ended.recv_timeout(BEAT) != Err(RecvTimeoutError::Timeout) {
                    return lateness;
                }
                lateness = lateness.max(SystemClock.now().since(due));
            }
        });
        let result = work();
        drop(running);
        (result, timekeeper.join().expect("it only keeps time"))
    })
}
