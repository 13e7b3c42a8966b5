//! The thread that moves the clocks of this process.

use super::threads::{Threads, pause};
use lock_core::{Clock, ManualClock, Moment};
use parking_lot::Mutex;
use std::ptr::addr_eq;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// The clocks that are moved, and whether there is a thread that does.
static DRIVER: Mutex<Driver> = Mutex::new(Driver {
    clocks: Vec::new(),
    running: false,
});

/// How often it is seen whether a thread waits for a moment, while none does.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

struct Driver {
    clocks: Vec<Weak<ManualClock>>,
    running: bool,
}

/// A clock that moves from now on.
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

/// Whether this is one of the clocks that are moved.
pub(super) fn is_moved(clock: &Arc<dyn Clock>) -> bool {
    let clock = Arc::as_ptr(clock);
    DRIVER
        .lock()
        .clocks
        .iter()
        .any(|moved| addr_eq(moved.as_ptr(), clock))
}

/// Ends the process if the thread that moves the clocks panics: all cases would wait for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("virtual time stands still: its thread has panicked");
            std::process::abort();
        }
    }
}

/// Moves the clocks until the last of them is gone.
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

/// Whether a thread waits for a moment on any clock. `None` if there is no clock, and this thread
/// is to end.
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

/// The earliest finite moment that a thread sleeps until.
fn earliest_sleeper(clock: &ManualClock) -> Option<Moment> {
    let sleepers = clock.sleepers();
    sleepers.into_iter().find(|until| *until != Moment::NEVER)
}

/// Moves the clock to that moment.
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
