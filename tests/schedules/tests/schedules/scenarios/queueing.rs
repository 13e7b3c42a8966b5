//! The wait queue of one client, and two clients that contend for one lock.

use crate::explore::{explore, is_punctual};
use crate::world::{LONG, NAME, TIMEOUT, give, in_time, ms, sleep, take, thread, threads, until};
use distlock_schedules::Client;
use distlock_schedules::sync::time;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Waiters of one client get the lock in the order of their arrival.
#[test]
fn fifo() {
    explore("fifo", 2_000, |world| {
        let client = world.client_with(|config| config.with_watchdog(LONG));
        let lock = client.mutex(NAME).expect("a lock");
        let guard = take(&lock);
        let order: Arc<Mutex<Vec<usize>>> = Arc::default();
        let waiters: Vec<_> = (0..3)
            .map(|number| {
                let (lock, order, world) = (lock.clone(), Arc::clone(&order), Arc::clone(world));
                let waiter = thread::spawn(move || {
                    let guard = take(&lock);
                    world.stay(&guard, Duration::ZERO);
                    order.lock().expect("no panic").push(number);
                    if number == 1 {
                        drop(guard);
                    } else {
                        give(guard);
                    }
                });
                until("it queues", ms(50), || {
                    client.queue_length(NAME).expect("a name") == number + 1 || !guard.is_valid()
                });
                waiter
            })
            .collect();
        let released = time::peek();
        give(guard);
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().expect("no panic"));
        in_time("three hand-offs", released, ms(60));
        let order = order.lock().expect("no panic");
        assert!(*order == [0, 1, 2] || !is_punctual(), "{order:?}");
    });
}

/// Threads of one client acquire the lock repeatedly, and hand it off to each other.
#[test]
fn hand_off() {
    explore("hand_off", 2_000, |world| {
        let client = world.client_with(|config| config.with_watchdog(LONG));
        let shared = Arc::clone(world);
        let lock = client.mutex(NAME).expect("a lock");
        threads(3, move |number| {
            for round in 0..2 {
                let guard = take(&lock);
                shared.stay(
                    &guard,
                    if number == round {
                        ms(3)
                    } else {
                        Duration::ZERO
                    },
                );
                if number == 1 {
                    drop(guard);
                } else {
                    give(guard);
                }
            }
        });
        in_time("six turns", Duration::ZERO, ms(300));
        drop(client);
    });
}

/// Two clients with two threads each: a release by one client wakes the waiters of the other
/// client.
#[test]
fn two_clients() {
    explore("two_clients", 2_000, |world| {
        let clients: Vec<Client> = (0..2)
            .map(|_| world.client_with(|config| config.with_watchdog(LONG)))
            .collect();
        let shared = Arc::clone(world);
        threads(4, move |number| {
            let lock = clients[number % 2].mutex(NAME).expect("a lock");
            let guard = take(&lock);
            shared.stay(&guard, if number == 0 { ms(3) } else { Duration::ZERO });
            if number == 3 {
                drop(guard);
            } else {
                give(guard);
            }
        });
        in_time("four turns", Duration::ZERO, ms(400));
    });
}

/// The deadlines of two waiters pass at the moment of the release: the waiter behind them gets the
/// lock.
#[test]
fn deadline() {
    explore("deadline", 2_000, |world| {
        let client = world.client_with(|config| config.with_watchdog(LONG));
        let other = world.client_with(|config| config.with_watchdog(LONG));
        // If another client holds the lock, the first waiter contends in the store. Otherwise all
        // wait locally.
        let is_ours = fastrand::bool();
        let lock = client.mutex(NAME).expect("a lock");
        let holder = if is_ours {
            lock.clone()
        } else {
            other.mutex(NAME).expect("a lock")
        };
        let (shared, is_held) = (Arc::clone(world), Arc::new(AtomicBool::new(false)));
        let holding = thread::spawn({
            let is_held = Arc::clone(&is_held);
            move || {
                let guard = take(&holder);
                is_held.store(true, Ordering::Relaxed);
                shared.stay(&guard, Duration::ZERO);
                sleep(ms(20));
                give(guard);
            }
        });
        until("it is held", ms(50), || is_held.load(Ordering::Relaxed));
        let start = time::peek();
        let end = ms(20).saturating_sub(start);
        let waiting = [end, end, ms(5_000)].map(|wait| {
            let (lock, shared) = (lock.clone(), Arc::clone(world));
            thread::spawn(move || {
                let asked = time::peek();
                let guard = lock.try_lock_for(wait).unwrap_or_else(|error| {
                    // In a late schedule the thread may be delayed past the time-out of its
                    // request.
                    assert!(error.is_unavailable() && !is_punctual(), "{error}");
                    None
                });
                in_time("a wait with an end", asked, (wait + ms(2)).min(ms(120)));
                guard.map(|guard| {
                    shared.stay(&guard, Duration::ZERO);
                    give(guard);
                })
            })
        });
        let [first, second, last] = waiting.map(|waiter| waiter.join().expect("no panic"));
        assert!(
            last.is_some() || !is_punctual(),
            "it had time enough, and the others {first:?}, {second:?}"
        );
        holding.join().expect("no panic");
        in_time("all of it", start, ms(120) + TIMEOUT);
        assert_eq!(client.queue_length(NAME).expect("a name"), 0);
    });
}

/// All handles of a name refer to one lock, even if they are created and dropped while the name is
/// in use.
#[test]
fn handles() {
    explore("handles", 2_000, |world| {
        let client = world.client_with(|config| config.with_watchdog(LONG));
        let shared = Arc::clone(world);
        let user = client.clone();
        threads(3, move |number| {
            let lock = user.mutex(NAME).expect("a lock");
            if number == 0 {
                return;
            }
            let guard = take(&lock);
            shared.stay(&guard, Duration::ZERO);
            let same = user.mutex(NAME).expect("a lock");
            let inner = same.try_lock();
            let is_same = matches!(inner, Ok(Some(_)));
            assert!(
                is_same || !is_punctual(),
                "another handle is of another lock"
            );
            drop((lock, same, inner));
            give(guard);
        });
        drop(client);
    });
}
