//! Fair locks: the order of arrival over two clients, and waiters that give up.

use crate::explore::{explore, is_punctual};
use crate::world::{
    LONG, NAME, World, give, give_anyhow, in_time, ms, patiently, sleep, take, taken, thread, until,
};
use distlock_schedules::sync::time;
use distlock_schedules::{Client, Interrupt, LockKind, LockOptions, Mutex};
use std::sync::{self, Arc};
use std::time::Duration;

fn locks(world: &World, lease: Duration) -> ([Client; 2], [Mutex; 2]) {
    let clients: [Client; 2] =
        std::array::from_fn(|_| world.client_with(|config| config.with_watchdog(lease)));
    let locks = std::array::from_fn(|at| clients[at].fair_mutex(NAME).expect("a lock"));
    (clients, locks)
}

/// Waits until the store counts this many waiters, each with a position in its queue.
fn queue(world: &World, count: u64) {
    let waiting = || world.waiting_clients(LockKind::Fair);
    until("it queues", ms(50), || waiting() == count || !is_punctual());
}

/// Threads of two clients get the lock in the order of their arrival. A `try_lock` in between takes
/// no position that would block them.
#[test]
fn arrival() {
    explore("arrival", 1_500, |world| {
        let (_clients, locks) = locks(world, LONG);
        let guard = take(&locks[0]);
        let order: Arc<sync::Mutex<Vec<usize>>> = Arc::default();
        let tries = fastrand::usize(..4);
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                if number == tries {
                    let lock = locks[1].clone();
                    let trying = thread::spawn(move || {
                        let busy = patiently(|| lock.try_lock());
                        assert!(busy.is_none() || !is_punctual(), "it is held");
                    });
                    trying.join().expect("no panic");
                }
                let (lock, order) = (locks[fastrand::usize(..2)].clone(), Arc::clone(&order));
                let shared = Arc::clone(world);
                let waiter = thread::spawn(move || {
                    let guard = take(&lock);
                    order.lock().expect("no panic").push(number);
                    let time = if number == 1 { ms(3) } else { Duration::ZERO };
                    shared.stay(&guard, time);
                    if number == 2 {
                        drop(guard);
                    } else {
                        give(guard);
                    }
                });
                queue(world, number as u64 + 1);
                waiter
            })
            .collect();
        let released = time::peek();
        give(guard);
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().expect("no panic"));
        in_time("four turns", released, ms(100));
        let order = order.lock().expect("no panic");
        assert!(*order == [0, 1, 2, 3] || !is_punctual(), "{order:?}");
    });
}

/// Waiters give up by deadline or interrupt, at the moment of the release or long before: the
/// waiters behind them get the lock at once.
#[test]
fn leavers() {
    explore("leavers", 1_500, |world| {
        let (_clients, locks) = locks(world, LONG);
        let guard = take(&locks[0]);
        let stop = Interrupt::new();
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let lock = locks[fastrand::usize(..2)].clone();
                let (stop, shared) = (stop.clone(), Arc::clone(world));
                let waiter = thread::spawn(move || {
                    let (wait, options) = match number {
                        0 => (ms(5_000), LockOptions::new().interrupt(&stop)),
                        2 => (ms(20), LockOptions::new()),
                        _ => (ms(5_000), LockOptions::new()),
                    };
                    match lock.try_lock_for_with(wait, &options) {
                        Ok(Some(guard)) => {
                            shared.stay(&guard, Duration::ZERO);
                            give(guard);
                        }
                        Ok(None) => assert!(number == 2 || !is_punctual(), "it had time enough"),
                        Err(error) => assert!(
                            error.is_interrupted() && number == 0
                                || error.is_unavailable() && !is_punctual(),
                            "{error}"
                        ),
                    }
                });
                queue(world, number as u64 + 1);
                waiter
            })
            .collect();
        if fastrand::bool() {
            sleep(ms(20).saturating_sub(time::peek()));
        }
        let firing = thread::spawn(move || stop.fire());
        if fastrand::bool() {
            sleep(ms(5));
        }
        let released = time::peek();
        give(guard);
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().expect("no panic"));
        firing.join().expect("no panic");
        in_time("four waits", released, ms(100));
        let start = time::peek();
        give(take(&locks[1]));
        in_time("no position is left: a turn", start, ms(5));
    });
}

/// Requests and replies are lost, late and repeated: afterwards the store has no holder and no
/// queue position that would delay the next attempt.
#[test]
fn positions_on_a_faulty_network() {
    explore("positions_on_a_faulty_network", 800, |world| {
        let clients = [world.client(), world.client()];
        let stop = Interrupt::new();
        world.net.trouble(4);
        let working: Vec<_> = (0..4)
            .map(|number| {
                let lock = clients[number % 2].fair_mutex(NAME).expect("a lock");
                let (shared, stop) = (Arc::clone(world), stop.clone());
                thread::spawn(move || {
                    let wait = if number == 0 { ms(150) } else { ms(3_000) };
                    let mut options = LockOptions::new();
                    if number == 1 {
                        options = options.interrupt(&stop);
                    }
                    if let Some(guard) = taken(lock.try_lock_for_with(wait, &options)) {
                        shared.stay(&guard, ms(fastrand::u64(..4) * 60));
                        give_anyhow(guard);
                    }
                })
            })
            .collect();
        world.interrupt_and_settle(&stop, working, &clients);
        let start = time::peek();
        give(take(&clients[0].fair_mutex(NAME).expect("a lock")));
        in_time("no position is left: a turn", start, ms(5));
    });
}

/// A release grants the lock to the next waiter, but the message arrives when this grant may have
/// ended or another owner may hold the lock: the waiter must not count the lock as held beyond the
/// lease in the store.
#[test]
fn late_messages() {
    explore("late_messages", 800, |world| {
        let (clients, locks) = locks(world, LONG);
        let stop = Interrupt::new();
        world.net.late_messages(6_000);
        world.net.trouble(2);
        let working: Vec<_> = (0..3)
            .map(|number| {
                let (shared, lock) = (Arc::clone(world), locks[number % 2].clone());
                let options = LockOptions::new().interrupt(&stop);
                thread::spawn(move || {
                    for _ in 0..3 {
                        let taken = taken(lock.try_lock_for_with(ms(20_000), &options));
                        let Some(guard) = taken else {
                            continue;
                        };
                        shared.stay(&guard, ms(fastrand::u64(..3) * 1_000));
                        give_anyhow(guard);
                    }
                })
            })
            .collect();
        sleep(ms(8_000));
        world.net.trouble(0);
        world.net.late_messages(0);
        sleep(ms(6_500));
        world.interrupt_and_settle(&stop, working, &clients);
    });
}
