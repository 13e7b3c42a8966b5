//! Waits that an interrupt ends, and a lock that is lost before the next waiter comes for it.

use crate::explore::{explore, is_punctual};
use crate::world::{NAME, in_time, ms, sleep, thread, until};
use distlock_schedules::sync::time;
use distlock_schedules::{DistLock, Interrupt};
use std::sync::Arc;
use std::time::Duration;

/// An interrupt comes at any point of three waits: in the queue, at the store, at the hand-off.
#[test]
fn interrupt() {
    explore("interrupt", 800, |world| {
        let long = ms(30_000);
        let client = world.client_with(|config| config.with_watchdog(long));
        let other = world.client_with(|config| config.with_watchdog(long));
        let lock = client.mutex(NAME).expect("a lock");
        let is_ours = fastrand::bool();
        let holder = if is_ours { lock.clone() } else { other.mutex(NAME).expect("a lock") };
        let guard = holder.lock().expect("it is free");
        let stop = Interrupt::new();
        let waiters: Vec<_> = (0..3)
            .map(|number| {
                let (lock, stop, shared) = (lock.clone(), stop.clone(), Arc::clone(world));
                thread::spawn(move || {
                    let guard =
                        if number == 2 { lock.lock() } else { lock.lock_interruptibly(&stop) };
                    match guard {
                        Ok(guard) => {
                            shared.judge.stay(&guard, Duration::ZERO);
                            guard.unlock().expect("ours");
                        }
                        Err(error) => assert!(number != 2 && error.is_interrupted(), "{error}"),
                    }
                })
            })
            .collect();
        let listener = {
            let stop = stop.clone();
            thread::spawn(move || stop.fired().recv().expect("it fires"))
        };
        if fastrand::bool() {
            sleep(ms(10));
        }
        // Either the interrupt alone ends two of the waits, or it comes along with the release.
        let fires_first = fastrand::bool();
        let firing = thread::spawn({
            let stop = stop.clone();
            move || stop.fire()
        });
        let start = time::peek();
        if fires_first {
            let mut waiters = waiters.into_iter();
            for waiter in waiters.by_ref().take(2) {
                waiter.join().expect("no panic");
            }
            in_time("an interrupt", start, ms(60));
            guard.unlock().expect("ours");
            waiters.for_each(|waiter| waiter.join().expect("no panic"));
        } else {
            guard.unlock().expect("ours");
            waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
        }
        listener.join().expect("no panic");
        firing.join().expect("no panic");
        in_time("the release behind it", start, ms(200));
    });
}

/// A holding is lost between its hand-off and the waiter's coming for it, and others ask meanwhile.
#[test]
fn lost_before_it_was_fetched() {
    explore("lost_before_it_was_fetched", 600, |world| {
        let client = world.client_with(|config| config.with_hand_off(ms(1_000)));
        let lock = client.mutex(NAME).expect("a lock");
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let (lock, shared) = (lock.clone(), Arc::clone(world));
                thread::spawn(move || {
                    let guard = lock.lock().expect("it is free some time");
                    let was_valid = shared.judge.stay(&guard, ms(5));
                    // Now and then a thread is stopped for longer than the lease.
                    if number == 1 {
                        shared.lose();
                        let _lost = guard.verify();
                    }
                    let ended = guard.unlock();
                    assert!(number == 1 || ended.is_ok() || !is_punctual() || !was_valid);
                })
            })
            .collect();
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
        until("no name is in use", ms(2_000), || client.waiting(NAME).expect("a name") == 0);
        in_time("four turns", Duration::ZERO, ms(900));
        // Whatever happened, the lock can be had, soon.
        let start = time::peek();
        lock.lock().expect("it is free").unlock().expect("ours");
        in_time("another turn", start, ms(60));
    });
}
