//! The thread that moves the clocks of this process.

use super::threads::{Threads, pause};
use lock_core::{Clock, ManualClock, Moment};
use parking_lot::Mutex;
use std::ptr::addr_eq;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// The clocks of virtual time, and whether the thread that moves them runs.
static DRIVER: Mutex<Driver> = Mutex::new(Driver {
    clocks: Vec::new(),
    running: false,
});

/// The interval at which the driver checks for a thread that waits on a clock, as long as it finds
/// none. It is short, because it delays the next thread that waits.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

struct Driver {
    clocks: Vec<Weak<ManualClock>>,
    running: bool,
}

/// Creates a clock that moves from now on, and starts the driver if it does not run.
pub(super) fn new_clock() -> Arc<ManualClock> {
    let clock = Arc::new(ManualClock::new());
    let mut driver = DRIVER.lock();
    driver.clocks.push(Arc::downgrade(&clock));
    if !driver.running {
        let spawned = thread::Builder::new()
            .name("virtual-time".to_owned())
            .spawn(drive);
        spawned.expect("a thread can be started");
        driver.running = true;
    }
    clock
}

/// Returns whether this is a clock of virtual time.
pub(super) fn is_moved(clock: &Arc<dyn Clock>) -> bool {
    let clock = Arc::as_ptr(clock);
    DRIVER
        .lock()
        .clocks
        .iter()
        .any(|moved| addr_eq(moved.as_ptr(), clock))
}

/// Ends the process if the driver panics. Otherwise all cases would wait for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("virtual time stands still: its thread has panicked");
            std::process::abort();
        }
    }
}

/// Moves the clocks until the last clock is dropped.
fn drive() {
    let _abort = AbortOnPanic;
    let mut threads = Threads::of_this_process();
    while let Some(is_needed) = look() {
        if !is_needed {
            pause(LOOK_AGAIN);
            continue;
        }
        threads.wait_until_all_sleep();
        for_each_clock(advance_to_the_earliest);
    }
}

/// Returns whether a thread waits for a finite moment on any clock; `None` if there is no clock, so
/// that the driver must end.
fn look() -> Option<bool> {
    let mut driver = DRIVER.lock();
    driver.clocks.retain(|clock| clock.strong_count() > 0);
    driver.running = !driver.clocks.is_empty();
    let is_running = driver.running;
    drop(driver);
    let mut is_needed = false;
    for_each_clock(|clock| is_needed |= earliest_sleeper(clock).is_some());
    is_running.then_some(is_needed)
}

/// Returns the earliest finite moment that a thread waits for on this clock.
fn earliest_sleeper(clock: &ManualClock) -> Option<Moment> {
    let sleepers = clock.sleepers();
    sleepers.into_iter().find(|until| *until != Moment::NEVER)
}

/// Moves the clock to the earliest finite moment that a thread waits for on it.
fn advance_to_the_earliest(clock: &ManualClock) {
    if let Some(until) = earliest_sleeper(clock) {
        clock.jump(until.since(clock.now()));
    }
}

fn for_each_clock(mut work: impl FnMut(&ManualClock)) {
    let clocks = DRIVER.lock().clocks.clone();
    clocks
        .iter()
        .filter_map(Weak::upgrade)
        .for_each(|clock| work(&clock));
}
