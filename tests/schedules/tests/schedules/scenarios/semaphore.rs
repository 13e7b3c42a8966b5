//! Semaphores: permits of two clients, several permits at once, a limit that changes, and permits
//! for waiters that give up.

use crate::explore::{explore, is_punctual};
use crate::sharing::{Claim, Sharing};
use crate::world::{
    Held, LEASE, LONG, NAME, World, give, give_anyhow, in_time, ms, patiently, sleep, taken,
    thread, threads, until,
};
use distlock_schedules::sync::time;
use distlock_schedules::{Client, Interrupt, LockKind, LockOptions, OwnedGuard, Semaphore};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{self, Arc};
use std::time::Duration;

fn clients(world: &World) -> [Client; 2] {
    std::array::from_fn(|_| world.client_with(|config| config.with_watchdog(LONG)))
}

fn permits_of(client: &Client, limit: u32) -> Semaphore {
    client.semaphore(NAME, limit).expect("a semaphore")
}

fn fair_permits_of(client: &Client, limit: u32) -> Semaphore {
    client.fair_semaphore(NAME, limit).expect("a semaphore")
}

fn acquire(permits: &Semaphore, count: u32) -> OwnedGuard {
    patiently(|| permits.acquire_many(count))
}

/// Returns how many permits are free according to the store.
fn free(world: &World) -> u32 {
    let kind = LockKind::Permits { limit: 1, count: 1 };
    world
        .inspect(kind)
        .permits
        .map_or(0, |permits| permits.free)
}

/// Threads of two clients acquire one or two of three permits, and some release them on another
/// thread: never more than three are valid at once.
#[test]
fn permits() {
    explore("permits", 1_500, |world| {
        let (clients, sharing) = (clients(world), Sharing::default());
        threads(5, move |number| {
            let permits = permits_of(&clients[number % 2], 3);
            for round in 0..2 {
                let count = fastrand::u32(1..3);
                let guard = acquire(&permits, count);
                let time = if number == round {
                    ms(3)
                } else {
                    Duration::ZERO
                };
                sharing.stay(Claim::Permits { count, limit: 3 }, &guard, time);
                match fastrand::u8(..3) {
                    0 => give(guard),
                    1 => drop(guard),
                    _ => thread::spawn(move || give(guard)).join().expect("no panic"),
                }
            }
        });
        in_time("ten turns", Duration::ZERO, ms(300));
        assert!(
            !is_punctual() || free(world) == 3,
            "{} are free",
            free(world)
        );
    });
}

/// If two permits are released, two waiting threads of a client hold them at once: the second
/// waiter does not wait for the release of the first.
#[test]
fn line() {
    explore("line", 1_500, |world| {
        let ([ours, theirs], sharing) = (clients(world), Arc::new(Sharing::default()));
        let held: Vec<_> = (0..2)
            .map(|_| acquire(&permits_of(&theirs, 2), 1))
            .collect();
        let inside = Arc::new(AtomicUsize::new(0));
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let (permits, seen) = (permits_of(&ours, 2), Arc::clone(&sharing));
                let inside = Arc::clone(&inside);
                thread::spawn(move || {
                    let guard = acquire(&permits, 1);
                    // Both threads of a pair hold their permits at the same time before either
                    // releases.
                    let pair = inside.fetch_add(1, Ordering::Relaxed) / 2 + 1;
                    let both = || inside.load(Ordering::Relaxed) >= pair * 2;
                    until("the other permit is given, too", ms(60), both);
                    seen.stay(
                        Claim::Permits { count: 1, limit: 2 },
                        &guard,
                        Duration::ZERO,
                    );
                    if number % 2 == 0 {
                        drop(guard);
                    } else {
                        give(guard);
                    }
                })
            })
            .collect();
        if fastrand::bool() {
            sleep(ms(5));
        }
        let start = time::peek();
        held.into_iter().for_each(give);
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().expect("no panic"));
        in_time("four turns", start, ms(200));
    });
}

/// Waiters of two clients get fair permits in the order of their arrival, whatever number each
/// wants. A waiter that gives up does not block the waiters behind it.
#[test]
fn fair_permits() {
    explore("fair_permits", 1_500, |world| {
        let (clients, sharing) = (clients(world), Arc::new(Sharing::default()));
        let held = acquire(&fair_permits_of(&clients[0], 3), 2);
        let order: Arc<sync::Mutex<Vec<usize>>> = Arc::default();
        let leaver = fastrand::usize(..4);
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let permits = fair_permits_of(&clients[fastrand::usize(..2)], 3);
                let (seen, order) = (Arc::clone(&sharing), Arc::clone(&order));
                let waiter = thread::spawn(move || {
                    let wait = if number == leaver { ms(20) } else { ms(5_000) };
                    // More than half of the permits, so that only one waiter at a time holds some
                    // and the order shows.
                    let (count, options) = (fastrand::u32(2..4), LockOptions::new());
                    match permits.try_acquire_for_with(count, wait, &options) {
                        Ok(Some(guard)) => {
                            order.lock().expect("no panic").push(number);
                            seen.stay(Claim::Permits { count, limit: 3 }, &guard, Duration::ZERO);
                            if number == 2 {
                                drop(guard);
                            } else {
                                give(guard);
                            }
                        }
                        Ok(None) => assert!(number == leaver || !is_punctual(), "{number}"),
                        Err(error) => {
                            assert!(error.is_unavailable() && !is_punctual(), "{error}");
                        }
                    }
                });
                let kind = LockKind::FairPermits { limit: 3, count: 1 };
                let waiting = || world.waiting_clients(kind) == number as u64 + 1;
                until("it queues", ms(50), || waiting() || !is_punctual());
                waiter
            })
            .collect();
        if fastrand::bool() {
            sleep(ms(20).saturating_sub(time::peek()));
        }
        let released = time::peek();
        give(held);
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().expect("no panic"));
        in_time("four turns", released, ms(100));
        let order = order.lock().expect("no panic");
        assert!(
            order.is_sorted() && order.len() >= 3 || !is_punctual(),
            "{order:?}"
        );
        assert!(
            !is_punctual() || free(world) == 3,
            "{} are free",
            free(world)
        );
    });
}

/// The limit falls and rises while threads hold permits and wait for them: the valid permits never
/// exceed it.
#[test]
fn limit() {
    explore("limit", 1_500, |world| {
        let ([ours, theirs], sharing) = (clients(world), Arc::new(Sharing::default()));
        let work = |permits: Semaphore, count, limit| {
            let seen = Arc::clone(&sharing);
            thread::spawn(move || {
                let guard = patiently(|| match permits.acquire_many(count) {
                    // Two permits were requested after the limit had fallen to one.
                    Err(error) if error.is_misuse() && count > 1 => Ok(None),
                    other => other.map(Some),
                });
                let Some(guard) = guard else { return };
                seen.stay(Claim::Permits { count, limit }, &guard, ms(3));
                give(guard);
            })
        };
        let mut operator = permits_of(&theirs, 3);
        let before: Vec<_> = (0..4)
            .map(|number| work(permits_of(&ours, 3), if number == 0 { 2 } else { 1 }, 3))
            .collect();
        if fastrand::bool() {
            sleep(ms(fastrand::u64(..4)));
        }
        patiently(|| operator.set_limit(1));
        let start = time::peek();
        let after: Vec<_> = (0..2).map(|_| work(operator.clone(), 1, 1)).collect();
        after
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        // A thread that was started before may wait for two permits, which a limit of one never
        // grants.
        patiently(|| operator.set_limit(3));
        before
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        in_time("six turns", start, ms(300));
        assert!(
            !is_punctual() || free(world) == 3,
            "{} are free",
            free(world)
        );
    });
}

/// Waits for a permit end by deadline or interrupt at the moment at which a permit is released: the
/// thread behind them gets it, and no permit is lost.
#[test]
fn permit_for_a_leaver() {
    explore("permit_for_a_leaver", 1_500, |world| {
        let [ours, theirs] = clients(world);
        let held = acquire(&permits_of(&theirs, 1), 1);
        let start = time::peek();
        let stop = Interrupt::new();
        let waiters: Vec<_> = (0..3)
            .map(|number| {
                let (permits, stop) = (permits_of(&ours, 1), stop.clone());
                let waiter = thread::spawn(move || {
                    let (wait, options) = match number {
                        0 => (ms(20), LockOptions::new().interrupt(&stop)),
                        1 => (ms(5_000), LockOptions::new().interrupt(&stop)),
                        _ => (ms(5_000), LockOptions::new()),
                    };
                    match permits.try_acquire_for_with(1, wait, &options) {
                        Ok(guard) => {
                            assert!(guard.is_some() || number == 0 || !is_punctual(), "{number}");
                            guard.into_iter().for_each(give);
                        }
                        Err(error) => assert!(
                            error.is_interrupted() && number < 2
                                || error.is_unavailable() && !is_punctual(),
                            "{error}"
                        ),
                    }
                });
                if fastrand::bool() {
                    sleep(ms(1));
                }
                waiter
            })
            .collect();
        sleep(ms(20).saturating_sub(time::peek() - start));
        let firing = fastrand::bool().then(|| thread::spawn(move || stop.fire()));
        let released = time::peek();
        give(held);
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().expect("no panic"));
        in_time("three waits", released, ms(60));
        firing
            .into_iter()
            .for_each(|firing| firing.join().expect("no panic"));
        let guard = patiently(|| permits_of(&theirs, 1).try_acquire());
        assert!(guard.is_some() || !is_punctual(), "a permit is lost");
    });
}

/// A renewal is answered that the permits or the write lock are gone, although the store still has
/// them: the client releases them, so that another client gets them before the lease ends.
#[test]
fn rest_of_a_loss() {
    fn wait(world: &World, guard: &impl Held, turn: impl FnOnce() + Send + 'static) {
        world.net.deny_renewals(1);
        let start = time::peek();
        let waiting = thread::spawn(turn);
        until("it is lost", LEASE, || !guard.is_valid());
        waiting.join().expect("no panic");
        in_time("the turn of the other one", start, LEASE / 3 + ms(20));
    }
    explore("rest_of_a_loss", 1_000, |world| {
        let clients = [world.client(), world.client()];
        if fastrand::bool() {
            let [ours, theirs] = clients.map(|client| permits_of(&client, 2));
            let guard = acquire(&ours, 2);
            wait(world, &guard, move || give(acquire(&theirs, 2)));
        } else {
            let [ours, theirs] = clients.map(|client| client.rw_lock(NAME).expect("a lock"));
            let guard = patiently(|| ours.write().lock());
            wait(world, &guard, move || {
                give(patiently(|| theirs.write().lock()));
            });
        }
    });
}

/// Requests and replies are lost, late and repeated: no permit is lost or granted twice.
#[test]
fn permits_on_a_faulty_network() {
    explore("permits_on_a_faulty_network", 800, |world| {
        on_a_faulty_network(world, permits_of);
    });
}

/// Requests and replies of a fair semaphore are lost, late and repeated: no permit is lost or
/// granted twice, and no queue position remains.
#[test]
fn fair_permits_on_a_faulty_network() {
    explore("fair_permits_on_a_faulty_network", 800, |world| {
        on_a_faulty_network(world, fair_permits_of);
    });
}

fn on_a_faulty_network(world: &Arc<World>, permits_of: fn(&Client, u32) -> Semaphore) {
    let (clients, sharing) = (
        [world.client(), world.client()],
        Arc::new(Sharing::default()),
    );
    // Before the network fails, because the first acquisition sets the limit in the store.
    give(acquire(&permits_of(&clients[0], 2), 1));
    let stop = Interrupt::new();
    world.net.trouble(4);
    let working: Vec<_> = (0..4)
        .map(|number| {
            let permits = permits_of(&clients[number % 2], 2);
            let (seen, stop) = (Arc::clone(&sharing), stop.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let wait = if fastrand::bool() { ms(150) } else { ms(3_000) };
                    let options = LockOptions::new().interrupt(&stop);
                    let count = fastrand::u32(1..3);
                    if let Some(guard) = taken(permits.try_acquire_for_with(count, wait, &options))
                    {
                        let claim = Claim::Permits { count, limit: 2 };
                        seen.stay(claim, &guard, ms(fastrand::u64(..4) * 60));
                        give_anyhow(guard);
                    }
                }
            })
        })
        .collect();
    world.interrupt_and_settle(&stop, working, &clients);
    assert!(
        !is_punctual() || free(world) == 2,
        "{} are free",
        free(world)
    );
    let all = || permits_of(&clients[0], 2).try_acquire_with(2, &LockOptions::new());
    assert!(
        patiently(all).is_some() || !is_punctual(),
        "a position is left"
    );
    let in_use = || clients.iter().map(Client::names_in_use).sum::<usize>();
    until("the name is forgotten", LEASE, || in_use() == 0);
}
