//! Read-write locks: readers and writers of one client, of two clients and of one thread, and waits
//! that end early.

use crate::explore::{explore, is_punctual};
use crate::sharing::{Claim, Sharing};
use crate::world::{
    LONG, NAME, World, give, give_anyhow, in_time, ms, patiently, sleep, taken, thread, threads,
    until,
};
use distlock_schedules::sync::time;
use distlock_schedules::{
    Client, Interrupt, LockGuard, LockKind, LockOptions, ReadLock, RwLock, WriteLock,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn clients(world: &World) -> [Client; 2] {
    std::array::from_fn(|_| world.client_with(|config| config.with_watchdog(LONG)))
}

fn lock_of(client: &Client) -> RwLock {
    client.rw_lock(NAME).expect("a lock")
}

fn read(lock: &ReadLock) -> LockGuard {
    patiently(|| lock.lock())
}

fn write(lock: &WriteLock) -> LockGuard {
    patiently(|| lock.lock())
}

/// Waits until the store knows of a waiting writer, which shows in the refusal of a new reader.
fn writer_is_known(reader: &ReadLock) {
    until("the writer is known", ms(50), || match reader.try_lock() {
        Ok(guard) => guard.map(give).is_none(),
        Err(error) => {
            assert!(error.is_unavailable() && !is_punctual(), "{error}");
            false
        }
    });
}

/// Threads of two clients read and write in any order: no guard is valid together with a writer's.
#[test]
fn readers_and_writers() {
    explore("readers_and_writers", 1_500, |world| {
        let (clients, sharing) = (clients(world), Sharing::default());
        let shared = Arc::clone(world);
        threads(4, move |number| {
            let lock = lock_of(&clients[number % 2]);
            for round in 0..2 {
                let time = if number == round {
                    ms(3)
                } else {
                    Duration::ZERO
                };
                if fastrand::bool() {
                    let guard = read(lock.read());
                    sharing.stay(Claim::Read(number), &guard, time);
                    give(guard);
                } else {
                    let guard = write(lock.write());
                    shared.judge.look(&guard);
                    sharing.stay(Claim::Write(number), &guard, time);
                    shared.judge.look(&guard);
                    if number == 3 {
                        drop(guard);
                    } else {
                        give(guard);
                    }
                }
            }
        });
        in_time("eight turns", Duration::ZERO, ms(300));
    });
}

/// A writer also acquires the read lock, and keeps it after the release of its write lock.
/// Meanwhile writers and readers of the same client and of another client wait.
#[test]
fn downgrade() {
    explore("downgrade", 1_500, |world| {
        let ([ours, theirs], sharing) = (clients(world), Arc::new(Sharing::default()));
        let first = Arc::new(AtomicBool::new(false));
        let (shared, is_first) = (Arc::clone(world), Arc::clone(&first));
        // Held until all threads wait, so that the first writer's grant finds other waiters and
        // reserves tokens for their hand-offs.
        let gate = write(lock_of(&theirs).write());
        let (mine, seen) = (lock_of(&ours), Arc::clone(&sharing));
        let downgrading = thread::spawn(move || {
            let writing = write(mine.write());
            is_first.store(true, Ordering::Relaxed);
            shared.judge.look(&writing);
            let reading = read(mine.read());
            let again = mine.write().try_lock();
            assert!(
                matches!(again, Ok(Some(_))) || !is_punctual(),
                "it writes already"
            );
            drop(again);
            let (token, tokens) = (writing.fencing_token(), reading.fencing_token());
            assert!(
                token == tokens || !is_punctual(),
                "the reader's is {tokens:?}, not {token:?}"
            );
            seen.stay(Claim::Write(0), &writing, Duration::ZERO);
            shared.judge.look(&writing);
            if fastrand::bool() {
                give(writing);
            } else {
                drop(writing);
            }
            seen.stay(Claim::Read(0), &reading, ms(3));
            let refused = mine.write().try_lock();
            let is_told = refused.as_ref().is_err_and(|error| error.is_misuse());
            assert!(
                is_told || !is_punctual(),
                "a reader cannot write: {refused:?}"
            );
            drop(refused);
            seen.stay(Claim::Read(0), &reading, ms(3));
            give(reading);
        });
        sleep(ms(1)); // where nothing is late it queues first
        let others: Vec<_> = (1..5)
            .map(|number| {
                let lock = lock_of(if number < 4 { &ours } else { &theirs });
                let (seen, shared) = (Arc::clone(&sharing), Arc::clone(world));
                thread::spawn(move || {
                    if number < 3 || fastrand::bool() {
                        let guard = write(lock.write());
                        shared.judge.look(&guard);
                        seen.stay(Claim::Write(number), &guard, Duration::ZERO);
                        shared.judge.look(&guard);
                        give(guard);
                    } else {
                        let guard = read(lock.read());
                        seen.stay(Claim::Read(number), &guard, Duration::ZERO);
                        give(guard);
                    }
                })
            })
            .collect();
        if fastrand::bool() {
            sleep(ms(1));
        }
        let start = time::peek();
        give(gate);
        downgrading.join().expect("no panic");
        others
            .into_iter()
            .for_each(|other| other.join().expect("no panic"));
        in_time("five turns", start, ms(200));
        assert!(first.load(Ordering::Relaxed));
    });
}

/// While a writer waits for a reader, new readers wait, too, until the writer has released the lock
/// or has given up.
#[test]
fn waiting_writer() {
    explore("waiting_writer", 1_500, |world| {
        let ([ours, theirs], sharing) = (clients(world), Arc::new(Sharing::default()));
        let (lock, other) = (lock_of(&ours), lock_of(&theirs));
        let reading = read(lock.read());
        let (stop, gives_up) = (Interrupt::new(), fastrand::u8(..3));
        let has_written = Arc::new(AtomicBool::new(false));
        let writer = {
            let (lock, stop) = (
                if fastrand::bool() { &lock } else { &other }.clone(),
                stop.clone(),
            );
            let (seen, has_written) = (Arc::clone(&sharing), Arc::clone(&has_written));
            thread::spawn(move || {
                let (wait, options) = match gives_up {
                    0 => (ms(20), LockOptions::new()),
                    1 => (ms(9_000), LockOptions::new().interrupt(&stop)),
                    _ => (ms(9_000), LockOptions::new()),
                };
                match lock.write().try_lock_for_with(wait, &options) {
                    Ok(Some(guard)) => {
                        seen.stay(Claim::Write(0), &guard, ms(3));
                        has_written.store(true, Ordering::Relaxed);
                        give(guard);
                    }
                    Ok(None) => assert!(gives_up == 0 || !is_punctual(), "it had time enough"),
                    Err(error) => assert!(
                        error.is_interrupted() && gives_up == 1
                            || error.is_unavailable() && !is_punctual(),
                        "{error}"
                    ),
                }
            })
        };
        if is_punctual() {
            thread::spawn({
                let other = other.clone();
                move || writer_is_known(other.read())
            })
            .join()
            .expect("no panic");
        }
        if gives_up > 0 && fastrand::bool() {
            sleep(ms(4_000)); // it goes on showing that it waits
        }
        let readers: Vec<_> = [&lock, &other]
            .into_iter()
            .enumerate()
            .map(|(number, lock)| {
                let (lock, seen) = (lock.clone(), Arc::clone(&sharing));
                let has_written = Arc::clone(&has_written);
                thread::spawn(move || {
                    let guard = read(lock.read());
                    let is_first = !has_written.load(Ordering::Relaxed);
                    assert!(
                        gives_up < 2 || !is_first || !is_punctual(),
                        "before the writer"
                    );
                    seen.stay(Claim::Read(number + 1), &guard, Duration::ZERO);
                    give(guard);
                })
            })
            .collect();
        let again = lock.read().try_lock();
        assert!(
            matches!(again, Ok(Some(_))) || !is_punctual(),
            "re-entry is no new reader"
        );
        drop(again);
        let start = time::peek();
        let firing = thread::spawn(move || stop.fire());
        if gives_up == 2 || fastrand::bool() {
            sharing.stay(Claim::Read(3), &reading, Duration::ZERO);
            give(reading);
            readers
                .into_iter()
                .for_each(|reader| reader.join().expect("no panic"));
        } else {
            // Once the writer has given up, the waiting readers get the lock together with the
            // first reader.
            readers
                .into_iter()
                .for_each(|reader| reader.join().expect("no panic"));
            give(reading);
        }
        in_time("the readers", start, ms(150));
        writer.join().expect("no panic");
        firing.join().expect("no panic");
        in_time("all of it", start, ms(150));
    });
}

/// Waits of readers and writers end by deadline or interrupt at the moment of the release: none of
/// them leaves a hold or a waiting writer behind that would block the next attempt.
#[test]
fn waits_that_end() {
    explore("waits_that_end", 1_500, |world| {
        let [ours, theirs] = clients(world);
        let sharing = Arc::new(Sharing::default());
        let (lock, stop) = (lock_of(&ours), Interrupt::new());
        let holder = lock_of(if fastrand::bool() { &ours } else { &theirs });
        let is_read = fastrand::bool();
        let guard = if is_read {
            read(holder.read())
        } else {
            write(holder.write())
        };
        let start = time::peek();
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let (lock, stop, seen) = (lock.clone(), stop.clone(), Arc::clone(&sharing));
                thread::spawn(move || {
                    let wait = if number < 2 { ms(20) } else { ms(5_000) };
                    let options = LockOptions::new().interrupt(&stop);
                    let (taken, claim) = match number % 2 {
                        0 => (
                            lock.write().try_lock_for_with(wait, &options),
                            Claim::Write(number),
                        ),
                        _ => (
                            lock.read().try_lock_for_with(wait, &options),
                            Claim::Read(number),
                        ),
                    };
                    match taken {
                        Ok(Some(guard)) => {
                            seen.stay(claim, &guard, Duration::ZERO);
                            give(guard);
                        }
                        Ok(None) => assert!(number < 2 || !is_punctual(), "it had time enough"),
                        Err(error) => assert!(
                            error.is_interrupted() || error.is_unavailable() && !is_punctual(),
                            "{error}"
                        ),
                    }
                })
            })
            .collect();
        sleep(ms(20));
        let firing = fastrand::bool().then(|| thread::spawn(move || stop.fire()));
        give(guard);
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().expect("no panic"));
        firing
            .into_iter()
            .for_each(|firing| firing.join().expect("no panic"));
        in_time("four waits", start, ms(120));
        let start = time::peek();
        give(read(lock_of(&theirs).read()));
        give(write(lock_of(&theirs).write()));
        in_time("nothing keeps others out: two turns", start, ms(60));
        assert!(!is_punctual() || world.inspect(LockKind::Read).holder.is_none());
    });
}

/// Requests and replies are lost, late and repeated: afterwards the store has no reader, and no
/// waiting writer that would block new readers.
#[test]
fn shares_on_a_faulty_network() {
    explore("shares_on_a_faulty_network", 800, |world| {
        let (clients, sharing) = (
            [world.client(), world.client()],
            Arc::new(Sharing::default()),
        );
        let stop = Interrupt::new();
        world.net.trouble(4);
        let working: Vec<_> = (0..4)
            .map(|number| {
                let lock = lock_of(&clients[number % 2]);
                let (seen, stop) = (Arc::clone(&sharing), stop.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let wait = if fastrand::bool() { ms(150) } else { ms(3_000) };
                        let options = LockOptions::new().interrupt(&stop);
                        let time = ms(fastrand::u64(..3) * 60);
                        let writing = (number < 2)
                            .then(|| taken(lock.write().try_lock_for_with(wait, &options)))
                            .flatten();
                        if let Some(guard) = &writing {
                            seen.stay(Claim::Write(number), guard, time);
                        }
                        let reading = taken(lock.read().try_lock_for_with(wait, &options));
                        writing.into_iter().for_each(give_anyhow);
                        if let Some(guard) = reading {
                            seen.stay(Claim::Read(number), &guard, time);
                            give_anyhow(guard);
                        }
                    }
                })
            })
            .collect();
        world.interrupt_and_settle(&stop, working, &clients);
        let start = time::peek();
        give(read(lock_of(&clients[0]).read()));
        give(write(lock_of(&clients[1]).write()));
        in_time("nothing keeps others out: two turns", start, ms(60));
    });
}
