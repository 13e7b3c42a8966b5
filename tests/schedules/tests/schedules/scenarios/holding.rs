//! Held locks: renewals concurrent with releases and losses, guards in several threads, re-entry,
//! panics.

use crate::explore::{explore, is_punctual};
use crate::world::{LEASE, NAME, give, in_time, ms, sleep, take, take_with, thread, until};
use distlock_schedules::sync::channel::TryRecvError;
use distlock_schedules::sync::time;
use distlock_schedules::{LockOptions, LossCause};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// A lock is released at about the moment at which a renewal is sent, and acquired by the next
/// thread: no loss is reported, and the name is removed from memory.
#[test]
fn renewal_and_release() {
    explore("renewal_and_release", 2_000, |world| {
        let client = world.client();
        let lock = client.mutex(NAME).expect("a lock");
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let (lock, shared) = (lock.clone(), Arc::clone(world));
                thread::spawn(move || {
                    let guard = take(&lock);
                    let losses = guard.losses();
                    // The watchdog renews after a third of the lease, or up to a twelfth of the
                    // lease earlier, rounded to ticks of the timer wheel.
                    let time = LEASE / 3 - ms(10 * fastrand::u64(..3));
                    let was_valid = shared.stay(&guard, time * (number + 1));
                    assert!(
                        was_valid || !is_punctual(),
                        "lost although nothing was late"
                    );
                    let token = guard.fencing_token();
                    match guard.unlock() {
                        Ok(()) => assert!(
                            matches!(losses.try_recv(), Err(TryRecvError::Disconnected)),
                            "a loss of {token:?} was told, and then it was released"
                        ),
                        Err(error) => {
                            assert!(error.is_lost() && !is_punctual(), "{error}");
                            let loss = losses.try_recv().expect("a loss is told");
                            // The lease may end in the store before the client reads the clock:
                            // then the store's answer shows the loss.
                            let cause = loss.cause();
                            assert!(matches!(cause, LossCause::Expired | LossCause::Gone));
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        drop(lock);
        until("the name is forgotten", LEASE / 3 + ms(20), || {
            client.names_in_use() == 0
        });
        assert!(
            !is_punctual() || world.judge.losses() == 0,
            "lost although nothing was late"
        );
    });
}

/// A lock is released and acquired with a shorter lease at about the moment at which its old
/// renewal would be sent in a batch with another lock's: both locks are then renewed in time.
#[test]
fn renewals_sent_along() {
    explore("renewals_sent_along", 2_000, |world| {
        let client = world.client();
        let long = LockOptions::new().watched(LEASE * 10);
        let other = take_with(&client.mutex("other").expect("a lock"), &long);
        sleep(ms(fastrand::u64(..100)));
        let lock = client.mutex(NAME).expect("a lock");
        let guard = take_with(&lock, &long);
        // The other lock is renewed after a third of its lease, or up to a twelfth of the lease
        // earlier.
        let time = LEASE * 10 / 3 - ms(10 * fastrand::u64(..35));
        assert!(
            world.stay(&guard, time) || !is_punctual(),
            "lost although nothing was late"
        );
        give(guard);
        let guard = take(&lock);
        assert!(
            world.stay(&guard, LEASE * 2) || !is_punctual(),
            "it was not renewed in time"
        );
        give(guard);
        assert!(
            other.is_valid() || !is_punctual(),
            "the other one was not renewed"
        );
        give(other);
        drop(lock);
        let time = LEASE * 10 / 3 + ms(20);
        until("the names are forgotten", time, || {
            client.names_in_use() == 0
        });
    });
}

/// A failed renewal is repeated before the lease ends.
#[test]
fn failed_renewal() {
    explore("failed_renewal", 2_000, |world| {
        let client = world.client();
        let lock = client.mutex(NAME).expect("a lock");
        let guard = take(&lock);
        world.net.fail_renewals(fastrand::usize(1..4));
        let was_valid = world.stay(&guard, LEASE * 2);
        assert!(was_valid || !is_punctual(), "it was not renewed again");
        give(guard);
    });
}

/// A guard that was found invalid stays invalid, even if an extension is confirmed just at the
/// deadline.
#[test]
fn validity_is_final() {
    explore("validity_is_final", 4_000, |world| {
        let client = world.client();
        let lock = client.owned_mutex(NAME).expect("a lock");
        let guard = Arc::new(take_with(&lock, &LockOptions::new().lease(LEASE)));
        let left = guard.remaining();
        let looking = {
            let (guard, shared) = (Arc::clone(&guard), Arc::clone(world));
            thread::spawn(move || {
                sleep(left);
                for _ in 0..4 {
                    shared.judge.look(&*guard);
                    sleep(ms(1));
                }
            })
        };
        sleep(left.saturating_sub(ms(1)));
        let extended = guard.extend(LEASE);
        assert!(extended.is_ok() || !is_punctual(), "{extended:?}");
        looking.join().expect("no panic");
        give(Arc::into_inner(guard).expect("the last clone"));
    });
}

/// A lock that is handed off repeatedly while the answers to its renewals are slow is not lost.
#[test]
fn hand_off_beside_renewals() {
    explore("hand_off_beside_renewals", 600, |world| {
        let client = world.client_with(|config| config.with_hand_off(ms(1_000)));
        let lock = client.mutex(NAME).expect("a lock");
        world.net.slow_renewals(30);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (lock, shared) = (lock.clone(), Arc::clone(world));
                thread::spawn(move || {
                    for _ in 0..10 {
                        let guard = take(&lock);
                        let was_valid = shared.stay(&guard, ms(12));
                        assert!(
                            was_valid || !is_punctual(),
                            "lost although nothing was late"
                        );
                        give(guard);
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
    });
}

/// The store loses a lock at about the moment of a renewal, a verification or an extension, and of
/// the release: the loss is reported once.
#[test]
fn loss() {
    explore("loss", 2_000, |world| {
        let client = world.client();
        let lock = client.owned_mutex(NAME).expect("a lock");
        let options = match fastrand::u8(..3) {
            0 => LockOptions::new().lease(ms(120)),
            1 => LockOptions::new().watched_at_most(LEASE, 1),
            _ => LockOptions::new(),
        };
        let guard = Arc::new(take_with(&lock, &options));
        let losses = guard.losses();
        let is_lost = fastrand::bool();
        let losing = {
            let shared = Arc::clone(world);
            thread::spawn(move || {
                sleep(LEASE / 3 - ms(25) + ms(fastrand::u64(..30)));
                if is_lost {
                    shared.lose();
                }
            })
        };
        let asking = {
            let (guard, shared) = (Arc::clone(&guard), Arc::clone(world));
            let extends = fastrand::bool();
            thread::spawn(move || {
                sleep(LEASE / 3 - ms(5));
                let answer = if extends {
                    guard.extend(LEASE)
                } else {
                    guard.verify().map(drop)
                };
                shared.judge.look(&*guard);
                if let Err(error) = answer {
                    assert!(error.is_lost() || !is_punctual(), "{error}");
                }
            })
        };
        let waiting = {
            let (lock, shared) = (lock.clone(), Arc::clone(world));
            thread::spawn(move || {
                let guard = take(&lock);
                shared.stay(&guard, Duration::ZERO);
                guard.unlock().is_ok()
            })
        };
        world.stay(&*guard, LEASE / 3 + ms(fastrand::u64(..10)));
        asking.join().expect("no panic");
        let ended = Arc::into_inner(guard).expect("the last clone").unlock();
        let told = losses.recv();
        match &ended {
            Ok(()) => {
                let is_used_up = |cause| cause == LossCause::RenewalsUsedUp;
                let only_used_up = told.as_ref().map_or(true, |loss| is_used_up(loss.cause()));
                assert!(only_used_up, "{told:?} was told, and then it was released");
            }
            Err(error) => assert!(error.is_lost() && told.is_ok(), "{error}, {told:?}"),
        }
        assert!(losses.recv().is_err(), "a loss is told once");
        losing.join().expect("no panic");
        // If the waiting thread had acquired the lock before the store lost it, this acquisition
        // was lost, too.
        let _was_ours = waiting.join().expect("no panic");
        assert!(world.judge.losses() <= 2, "a loss is told once");
    });
}

/// An owned guard is dropped on another thread. A detached hold ends by `unlock` or with its
/// thread, and the next thread then gets the lock.
#[test]
fn sent_and_detached() {
    explore("sent_and_detached", 1_500, |world| {
        let client = world.client();
        let owned = client.owned_mutex(NAME).expect("a lock");
        let lock = client.mutex(NAME).expect("a lock");
        let guard = take(&owned);
        let dropping = {
            let shared = Arc::clone(world);
            thread::spawn(move || {
                shared.stay(&guard, Duration::ZERO);
                drop(guard);
            })
        };
        let detaching: Vec<_> = (0..2)
            .map(|number| {
                let (lock, shared) = (lock.clone(), Arc::clone(world));
                thread::spawn(move || {
                    let guard = take(&lock);
                    shared.stay(&guard, Duration::ZERO);
                    guard.detach();
                    assert_eq!(lock.hold_count(), 1);
                    if number == 0 {
                        let ended = lock.unlock();
                        assert!(ended.is_ok() || !is_punctual(), "{ended:?}");
                        assert!(lock.unlock().expect_err("it ended").is_not_held());
                    } // the other one ends, and leaves its hold behind
                })
            })
            .collect();
        dropping.join().expect("no panic");
        detaching
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        // The watchdog finds the end of the thread when its timer fires next, after a third of the
        // lease.
        let start = time::peek();
        let last = take(&lock);
        in_time(
            "the end of a thread that held it",
            start,
            LEASE / 3 + ms(30),
        );
        world.stay(&last, Duration::ZERO);
        give(last);
        drop((lock, owned));
        until("the name is forgotten", LEASE, || {
            client.names_in_use() == 0
        });
    });
}

/// Nested holds of several threads, some of which need a longer lease: an inner hold that ends does
/// not release the lock.
#[test]
fn reentry() {
    explore("reentry", 2_000, |world| {
        let client = world.client();
        let lock = client.mutex(NAME).expect("a lock");
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (lock, shared) = (lock.clone(), Arc::clone(world));
                thread::spawn(move || {
                    let outer = take(&lock);
                    let options = match number {
                        0 => LockOptions::new(),
                        1 => LockOptions::new().lease(LEASE * 2),
                        _ => LockOptions::new().watched(LEASE * 2),
                    };
                    let inner = match lock.try_lock_with(&options) {
                        Ok(inner) => inner.expect("a thread is never busy for itself"),
                        Err(error) => {
                            // The lock was lost, or its extension was not confirmed in time.
                            let is_late = error.is_lost() || error.is_unavailable();
                            assert!(is_late && !is_punctual(), "{error}");
                            assert_eq!(lock.hold_count(), 1);
                            return;
                        }
                    };
                    assert_eq!(lock.hold_count(), 2);
                    assert_eq!(inner.fencing_token(), outer.fencing_token());
                    let ended = inner.unlock();
                    assert!(ended.is_ok() || !is_punctual(), "{ended:?}");
                    assert_eq!(lock.hold_count(), 1);
                    let is_valid = shared.stay(&outer, Duration::ZERO);
                    assert!(is_valid || !is_punctual(), "lost with the inner hold");
                    drop(outer);
                    assert_eq!(lock.hold_count(), 0);
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        // The lock can be acquired again, whether or not it was lost before.
        give(take(&lock));
    });
}

/// A panic while a guard is held releases the lock, and the next thread gets it.
#[test]
fn panic_inside() {
    explore("panic_inside", 2_000, |world| {
        let client = world.client_with(|config| config.with_watchdog(ms(30_000)));
        let lock = client.mutex(NAME).expect("a lock");
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (lock, shared) = (lock.clone(), Arc::clone(world));
                thread::spawn(move || {
                    let caught = catch_unwind(AssertUnwindSafe(|| {
                        let guard = take(&lock);
                        shared.stay(&guard, Duration::ZERO);
                        if number != 1 {
                            resume_unwind(Box::new("on purpose"));
                        }
                        give(guard);
                    }));
                    assert_eq!(caught.is_ok(), number == 1);
                    assert_eq!(lock.hold_count(), 0);
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        in_time("three turns", Duration::ZERO, ms(200));
    });
}

/// A lock that is acquired at the moment at which the idle watchdog's thread ends is still renewed.
#[test]
fn idle_watchdog() {
    explore("idle_watchdog", 1_000, |world| {
        let client = world.client();
        let lock = client.mutex(NAME).expect("a lock");
        give(take(&lock));
        // The timer of the released lock fires once more, as in `renewal_and_release`. The idle
        // thread of the watchdog ends ten seconds later.
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (lock, shared) = (lock.clone(), Arc::clone(world));
                let idle = ms(10_000) + LEASE / 3 - ms(10 * fastrand::u64(..3));
                thread::spawn(move || {
                    sleep(idle);
                    let guard = take(&lock);
                    let was_valid = shared.stay(&guard, LEASE * 2);
                    assert!(was_valid || !is_punctual(), "it was not renewed");
                    let ended = guard.unlock();
                    assert!(ended.is_ok() || !is_punctual(), "{ended:?}");
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
    });
}

/// A renewal that is due at the moment at which the idle thread that sends renewals ends is still
/// sent.
#[test]
fn idle_worker() {
    explore("idle_worker", 2_000, |world| {
        let client = world.client();
        let lock = client.mutex(NAME).expect("a lock");
        for _ in 0..2 {
            // The first renewal is due at the same time after each grant of this name. The sending
            // thread ends after thirty idle seconds, which is when the second round's renewal is
            // due.
            let guard = take(&lock);
            let began = time::peek();
            let was_valid = world.stay(&guard, LEASE * 2 / 5);
            assert!(was_valid || !is_punctual(), "it was not renewed");
            give(guard);
            sleep(ms(30_000).saturating_sub(time::peek() - began));
        }
    });
}
