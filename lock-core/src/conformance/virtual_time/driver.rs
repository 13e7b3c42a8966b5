//! The thread that moves the clocks of this process.

use super::threads::{Threads, pause};
use crate::clock::{ManualClock, ManualState};
use parking_lot::Mutex;
use std::sync::Weak;
use std::thread;
use std::time::Duration;

/// The clocks that are moved, and whether there is a thread that does.
static DRIVER: Mutex<Driver> = Mutex::new(Driver { clocks: Vec::new(), running: false });

/// How often it is seen whether a thread waits for a moment, while none does.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

struct Driver {
    clocks: Vec<Weak<ManualState>>,
    running: bool,
}

/// A clock that moves from now on.
pub(super) fn new_clock() -> ManualClock {
    let clock = ManualClock::new();
    let mut driver = DRIVER.lock();
    driver.clocks.push(clock.downgrade());
    if !driver.running {
        let spawned = thread::Builder::new().name("virtual-time".to_owned()).spawn(drive);
        spawned.expect("a thread can be started");
        driver.running = true;
    }
    clock
}

/// Moves the clocks until the last of them is gone.
fn drive() {
    let mut threads = Threads::of_this_process();
    while let Some(is_needed) = look() {
        if !is_needed {
            pause(LOOK_AGAIN);
            continue;
        }
        threads.wait_until_all_sleep();
        for_each_clock(|clock| clock.advance_to_the_earliest());
    }
}

/// Whether a thread waits for a moment on any clock. `None` if there is no clock, and this thread is to end.
fn look() -> Option<bool> {
    let mut driver = DRIVER.lock();
    driver.clocks.retain(|clock| clock.strong_count() > 0);
    driver.running = !driver.clocks.is_empty();
    let is_running = driver.running;
    drop(driver);
    let mut is_needed = false;
    for_each_clock(|clock| is_needed |= clock.has_sleepers());
    is_running.then_some(is_needed)
}

fn for_each_clock(mut work: impl FnMut(ManualClock)) {
    let clocks = DRIVER.lock().clocks.clone();
    clocks.iter().filter_map(Weak::upgrade).for_each(|state| work(ManualClock::of(state)));
}
