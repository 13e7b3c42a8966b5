//! Waits that an interrupt ends, and a lock that is lost during its hand-off.

use crate::explore::{explore, is_punctual, stop};
use crate::world::{LEASE, NAME, give, in_time, ms, sleep, take, thread, until};
use distlock_schedules::sync::time;
use distlock_schedules::{Error, Interrupt};
use std::sync::Arc;
use std::time::Duration;

/// An interrupt ends the waits of two threads at any point: in the queue, at the store, or at the
/// hand-off. A third waiter is not affected.
#[test]
fn interrupt() {
    explore("interrupt", 2_000, |world| {
        let long = ms(30_000);
        let client = world.client_with(|config| config.with_watchdog(long));
        let other = world.client_with(|config| config.with_watchdog(long));
        let lock = client.mutex(NAME).expect("a lock");
        let is_ours = fastrand::bool();
        let holder = if is_ours {
            lock.clone()
        } else {
            other.mutex(NAME).expect("a lock")
        };
        let guard = take(&holder);
        let stop = Interrupt::new();
        let waiters: Vec<_> = (0..3)
            .map(|number| {
                let (lock, stop, shared) = (lock.clone(), stop.clone(), Arc::clone(world));
                thread::spawn(move || {
                    let guard = if number == 2 {
                        lock.lock()
                    } else {
                        lock.lock_interruptibly(&stop)
                    };
                    match guard {
                        Ok(guard) => {
                            shared.stay(&guard, Duration::ZERO);
                            give(guard);
                        }
                        Err(error) => assert!(
                            number != 2 && error.is_interrupted()
                                || error.is_unavailable() && !is_punctual(),
                            "{error}"
                        ),
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
        // Either the interrupt alone ends two of the waits, or it coincides with the release.
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
            give(guard);
            waiters.for_each(|waiter| waiter.join().expect("no panic"));
        } else {
            give(guard);
            waiters
                .into_iter()
                .for_each(|waiter| waiter.join().expect("no panic"));
        }
        listener.join().expect("no panic");
        firing.join().expect("no panic");
        in_time("the release behind it", start, ms(200));
    });
}

/// An interrupt ends a wait at once, even while the waiter's request is at the store.
#[test]
fn interrupt_at_the_store() {
    explore("interrupt_at_the_store", 2_000, |world| {
        let long = ms(30_000);
        let client = world.client_with(|config| config.with_watchdog(long));
        let other = world.client_with(|config| config.with_watchdog(long));
        let guard = take(&other.mutex(NAME).expect("a lock"));
        let lock = client.mutex(NAME).expect("a lock");
        for _ in 0..4 {
            let stop = Interrupt::new();
            let firing = thread::spawn({
                let stop = stop.clone();
                move || stop.fire()
            });
            let start = time::peek();
            let error = lock
                .lock_interruptibly(&stop)
                .expect_err("another client holds it");
            assert!(error.is_interrupted(), "{error}");
            in_time("an interrupt", start, ms(10));
            firing.join().expect("no panic");
        }
        give(guard);
    });
}

/// An acquisition is lost between its hand-off and the moment at which the waiter takes it.
/// Meanwhile a thread of another client may acquire the lock.
#[test]
fn hand_off_lost_before_the_waiter_takes_it() {
    explore("hand_off_lost_before_the_waiter_takes_it", 2_000, |world| {
        let client = world.client_with(|config| config.with_hand_off(ms(1_000)));
        let lock = client.mutex(NAME).expect("a lock");
        let others = world.client().owned_mutex(NAME).expect("a lock");
        let first = take(&others);
        let is_taken = fastrand::bool();
        let handing = {
            let (lock, shared) = (lock.clone(), Arc::clone(world));
            thread::spawn(move || {
                // Other threads wait at the time of this grant, so the acquisition may be handed
                // off to them.
                let guard = take(&lock);
                // The client learns of the loss only from the next renewal.
                shared.lose();
                let taking = is_taken.then(|| {
                    let (guard, shared) = (take(&others), Arc::clone(&shared));
                    thread::spawn(move || {
                        shared.stay(&guard, LEASE / 2); // beyond that renewal
                        drop(guard);
                    })
                });
                drop(guard);
                if let Some(taking) = taking {
                    taking.join().expect("no panic");
                }
            })
        };
        let queues = |count| {
            until("it queues", ms(50), || {
                client.queue_length(NAME).expect("a name") == count || !is_punctual()
            });
        };
        queues(1);
        let waiters: Vec<_> = (0..3)
            .map(|number| {
                let (lock, shared) = (lock.clone(), Arc::clone(world));
                let waiter = thread::spawn(move || {
                    let guard = take(&lock);
                    shared.judge.look(&guard);
                    // An acquisition that was handed off before the loss was found may be lost,
                    // too.
                    let ended = guard.unlock();
                    assert!(ended.as_ref().err().is_none_or(Error::is_lost), "{ended:?}");
                });
                queues(number + 2);
                waiter
            })
            .collect();
        let stopped = stop(&waiters[0], time::peek() + ms(fastrand::u64(..400)));
        drop(first);
        handing.join().expect("no panic");
        stopped.join().expect("no panic");
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().expect("no panic"));
        assert_eq!(client.queue_length(NAME).expect("a name"), 0);
        in_time("four turns", Duration::ZERO, ms(900));
        // Whichever of these happened, the lock can be acquired again soon.
        let start = time::peek();
        give(take(&lock));
        in_time("another turn", start, ms(60));
    });
}
