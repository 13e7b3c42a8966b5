//! Tests of threads that acquire several locks concurrently, on the system clock.

use super::*;
use crate::{MemoryBackend, SystemClock};
use parking_lot::Mutex as Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes three clients, each with its own in-memory store. All threads share these clients.
fn clients() -> [Client; 3] {
    [(); 3].map(|()| {
        let store = MemoryBackend::new(Arc::new(SystemClock));
        crate::builder().backend(Arc::new(store)).connect().unwrap()
    })
}

/// Lets eight threads acquire the lock that `choose` returns, `rounds` times each. Checks that the
/// token of each member grows from one acquisition to the next.
fn contend(rounds: usize, choose: impl Fn(&[Mutex; 3], usize) -> Arc<dyn DistLock> + Sync) {
    let clients = clients();
    let locks = [0, 1, 2].map(|n| clients[n].mutex(NAMES[n]).unwrap());
    let seen: Cell<[u64; 3]> = Cell::default();
    let wait = 60 * SECOND;
    thread::scope(|scope| {
        for thread in 0..8 {
            let (locks, choose, seen) = (&locks, &choose, &seen);
            scope.spawn(move || {
                for round in 0..rounds {
                    let lock = choose(locks, thread + round);
                    let guard = lock
                        .try_lock_for(wait)
                        .unwrap()
                        .expect("no thread waits for ever");
                    let mut seen = seen.try_lock_for(wait).unwrap();
                    for (name, token) in guard.fencing_tokens() {
                        let at = NAMES.iter().position(|it| *it == name.as_str()).unwrap();
                        let token = token.unwrap().get();
                        assert!(token > seen[at], "the token of {name} grows");
                        seen[at] = token;
                    }
                    drop(seen);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    for lock in &locks {
        assert!(!lock.is_locked().unwrap());
        drop(lock.try_lock().unwrap().unwrap());
    }
}

#[test]
fn opposite_orders_do_not_deadlock() {
    contend(100, |[a, b, _], n| {
        let both = if n % 2 == 0 { [a, b] } else { [b, a] };
        MultiLock::new(both).unwrap().into()
    });
}

#[test]
fn ring_of_pairs_does_not_deadlock() {
    contend(60, |locks, n| {
        MultiLock::new([&locks[n % 3], &locks[(n + 1) % 3]])
            .unwrap()
            .into()
    });
}

/// Threads that lock single members keep the queues from ever being empty, so a try never finds a
/// member free.
#[test]
fn multi_lock_is_taken_though_its_queues_are_never_empty() {
    let clients = clients();
    let [a, b] = [0, 1].map(|n| clients[n].mutex(NAMES[n]).unwrap());
    let both = MultiLock::new([&a, &b]).unwrap();
    let is_over = AtomicBool::new(false);
    let mut waits = Vec::new();
    thread::scope(|scope| {
        for lock in [&a, &a, &a, &b, &b, &b] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let guard = lock.lock().unwrap();
                    let until = SystemClock.now() + SECOND / 2000;
                    while SystemClock.now() < until {
                        thread::yield_now();
                    }
                    guard.unlock().unwrap();
                }
            });
        }
        for _ in 0..5 {
            for (client, name) in clients.iter().zip(NAMES).take(2) {
                eventually("each member has a queue", || {
                    client.queue_length(name).unwrap() >= 2
                });
            }
            let start = SystemClock.now();
            let guard = both.try_lock_for(20 * SECOND).unwrap();
            waits.push(SystemClock.now().since(start));
            let has_it = guard.is_some();
            drop(guard);
            if !has_it {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{waits:?}");
    assert!(
        waits.len() == 5 && waits.iter().all(|wait| *wait < 20 * SECOND),
        "{waits:?}"
    );
}
