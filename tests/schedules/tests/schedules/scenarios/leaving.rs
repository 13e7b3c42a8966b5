//! Clients that are dropped while their threads wait, renew and release.

use crate::explore::{explore, is_punctual};
use crate::world::{LEASE, NAME, TIMEOUT, give, in_time, ms, sleep, take, thread};
use distlock_schedules::sync::time;
use std::sync::Arc;
use std::time::Duration;

/// The last handle of a client is dropped while its threads still wait, hold and release: each
/// thread finishes, another client gets the lock, and no thread of the library remains.
#[test]
fn last_handle() {
    explore("last_handle", 1_500, |world| {
        let client = world.client();
        let other = world.client();
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let lock = client.mutex(NAME).expect("a lock");
                let shared = Arc::clone(world);
                thread::spawn(move || {
                    let guard = take(&lock);
                    drop(lock); // the guard is the last that this thread has of the client
                    let time = if number == 0 {
                        LEASE / 3
                    } else {
                        Duration::ZERO
                    };
                    shared.stay(&guard, time);
                    if number == 1 {
                        guard.detach();
                        shared.judge.is_detached();
                    } else if number == 2 {
                        drop(guard);
                    } else {
                        let ended = guard.unlock();
                        assert!(ended.is_ok() || !is_punctual(), "{ended:?}");
                    }
                })
            })
            .collect();
        drop(client);
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        let start = time::peek();
        let lock = other.mutex(NAME).expect("a lock");
        let guard = take(&lock);
        in_time("a lock of a client that is gone", start, ms(60));
        world.stay(&guard, Duration::ZERO);
        give(guard);
        drop((lock, other));
        let gone = time::peek();
        while time::threads() > 0 {
            in_time("the end of the threads", gone, ms(30));
            sleep(ms(1));
        }
    });
}

/// A client is dropped while a release is unconfirmed: the release is repeated before the drop
/// returns.
#[test]
fn unconfirmed_release() {
    explore("unconfirmed_release", 2_000, |world| {
        let client = world.client();
        world.net.trouble(2);
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let lock = client.mutex(NAME).expect("a lock");
                let shared = Arc::clone(world);
                thread::spawn(move || {
                    let guard = match lock.lock() {
                        Ok(guard) => guard,
                        Err(error) => return assert!(error.is_unavailable(), "{error}"),
                    };
                    shared.stay(&guard, Duration::ZERO);
                    if number == 0 {
                        drop(guard);
                    } else {
                        drop(guard.unlock());
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        world.net.trouble(0);
        // The additional 10 µs ensure that no request under way began at the moment of the drop.
        sleep(ms(fastrand::u64(..100)) + Duration::from_micros(10));
        let start = time::peek();
        drop(client);
        // A request that hangs at the drop may delay the drop by one time-out, and nothing else may
        // delay it.
        in_time("the end of the client", start, TIMEOUT + ms(5));
        assert!(
            !world.is_held() || !is_punctual(),
            "the release was not repeated"
        );
        sleep(LEASE + TIMEOUT);
    });
}

/// The last unknown outcome is settled at the moment at which `wait_for_cleanup` begins: otherwise
/// the call could miss the notification and wait for its whole time-out.
#[test]
fn cleanup_ends_as_its_wait_begins() {
    explore("cleanup_ends_as_its_wait_begins", 2_000, |world| {
        let client = world.client();
        let lock = client.mutex(NAME).expect("a lock");
        let dropping = {
            let lock = lock.clone();
            thread::spawn(move || drop(take(&lock)))
        };
        for _ in 0..2 {
            drop(take(&lock));
            let start = time::peek();
            let settled = client.wait_for_cleanup(LEASE * 10);
            assert!(settled.is_ok() || !is_punctual(), "{settled:?}");
            in_time("the answers", start, ms(10));
        }
        dropping.join().expect("no panic");
    });
}
