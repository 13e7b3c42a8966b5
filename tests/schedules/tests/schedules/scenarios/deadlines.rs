//! Waits for locks of all kinds whose deadlines may fall on any step of another thread's request.

use crate::explore::{explore, is_punctual};
use crate::world::{Held, LONG, NAME, World, give, ms, sleep, thread};
use distlock_schedules::{Client, Error, Interrupt, LockOptions};
use std::sync::Arc;
use std::time::Duration;

/// Acquires a lock of one kind until the deadline, and releases it. Returns whether it was
/// acquired.
type Turn = fn(&Client, Duration, &LockOptions) -> Result<bool, Error>;

/// Holds the lock of this guard for up to 2 ms, and releases it. Returns whether there is a guard.
fn hold(guard: Option<impl Held>) -> bool {
    let Some(guard) = guard else { return false };
    sleep(ms(fastrand::u64(..3)));
    give(guard);
    true
}

/// All kinds of locks; for semaphores one permit, several permits, and more permits than there are.
const KINDS: [(&str, Turn); 8] = [
    ("mutex", |client, wait, options| {
        Ok(hold(client.mutex(NAME)?.try_lock_for_with(wait, options)?))
    }),
    ("owned", |client, wait, options| {
        Ok(hold(
            client.owned_mutex(NAME)?.try_lock_for_with(wait, options)?,
        ))
    }),
    ("fair", |client, wait, options| {
        Ok(hold(
            client.fair_mutex(NAME)?.try_lock_for_with(wait, options)?,
        ))
    }),
    ("write", |client, wait, options| {
        Ok(hold(
            client
                .rw_lock(NAME)?
                .write()
                .try_lock_for_with(wait, options)?,
        ))
    }),
    ("read", |client, wait, options| {
        Ok(hold(
            client
                .rw_lock(NAME)?
                .read()
                .try_lock_for_with(wait, options)?,
        ))
    }),
    ("permit", |client, wait, options| {
        Ok(hold(
            client
                .semaphore(NAME, 1)?
                .try_acquire_for_with(1, wait, options)?,
        ))
    }),
    ("permits", |client, wait, options| {
        Ok(hold(
            client
                .semaphore(NAME, 3)?
                .try_acquire_for_with(2, wait, options)?,
        ))
    }),
    ("too many", |client, wait, options| {
        match client
            .semaphore(NAME, 3)?
            .try_acquire_for_with(4, wait, options)
        {
            Ok(guard) => Ok(hold(guard)),
            Err(error) if error.is_misuse() => Ok(false),
            Err(error) => Err(error),
        }
    }),
];

/// Threads of two clients contend for a lock with random deadlines, while each request takes a few
/// milliseconds.
fn take_turns(world: &Arc<World>, (kind, turn): (&'static str, Turn)) {
    world.net.distance(fastrand::usize(..4));
    let clients = [(); 2].map(|()| world.client_with(|config| config.with_watchdog(LONG)));
    let stop = Interrupt::new();
    let threads: Vec<_> = (0..5)
        .map(|number| {
            // Four of the five threads share a client, and wait for each other in its queue.
            let (client, stop) = (clients[usize::from(number == 4)].clone(), stop.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let wait = ms(fastrand::u64(1..20));
                    let options = LockOptions::new();
                    let options = if number == 0 {
                        options.interrupt(&stop)
                    } else {
                        options
                    };
                    let turn = turn(&client, wait, &options);
                    let is_interrupted = turn.as_ref().err().is_some_and(Error::is_interrupted);
                    // In a late schedule a thread may take longer than the time-out of its request.
                    let is_told = turn.is_ok() || is_interrupted && number == 0 || !is_punctual();
                    assert!(is_told, "{kind}: {turn:?}");
                }
            })
        })
        .collect();
    sleep(ms(fastrand::u64(..20)));
    stop.fire();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
    world.net.distance(0);
    for client in &clients {
        let settled = client.wait_for_cleanup(Duration::from_secs(1));
        assert!(settled.is_ok() || !is_punctual(), "{kind}: {settled:?}");
    }
}

/// The store answers every request, so no wait may report it as unavailable, whichever step of
/// another thread's request its deadline falls on.
#[test]
fn deadlines_beside_grants() {
    explore("deadlines_beside_grants", 4_000, |world| {
        take_turns(world, KINDS[fastrand::usize(..KINDS.len())]);
    });
}
