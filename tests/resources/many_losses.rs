//! Losses among very many held locks: each is told at once, and costs no healthy lock anything.

use distlock::{Client, Clock, DistLock, Event, LockOptions, Moment, OwnedGuard, SystemClock};
use distlock_tests::own_process::{alone, own_cpu_time};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::{Stopwatch, eventually, let_pass, scaled, with_tolerance};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// How many threads take the locks: several requests are under way at a time.
const THREADS: usize = 8;

/// When the loss of each lock was told.
type Losses = Arc<Mutex<HashMap<String, Moment>>>;

fn holder(server: &RedisServer, lease: Duration) -> (Client, Losses) {
    let losses = Losses::default();
    let told = Arc::clone(&losses);
    let handler = move |event: &Event| match event {
        Event::Lost { lock, .. } => {
            told.lock().insert(lock.as_str().to_owned(), SystemClock.now());
        }
        Event::Missed { count, .. } => panic!("{count} events are missed"),
        _ => {}
    };
    let builder = builder(server, "").configure(|config| config.with_watchdog(lease));
    (builder.events(Arc::new(handler)).connect().unwrap(), losses)
}

fn name_of(number: usize) -> String {
    format!("many:{number}")
}

/// Takes so many mutexes, in the order of their numbers.
fn hold(client: &Client, count: usize) -> Vec<OwnedGuard> {
    thread::scope(|scope| {
        let take = |thread: usize| {
            let numbers = thread * count / THREADS..(thread + 1) * count / THREADS;
            let take = |number| client.owned_mutex(name_of(number)).unwrap().lock().unwrap();
            numbers.map(take).collect::<Vec<_>>()
        };
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || take(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Locks of each kind, taken and released again and again until `done`. How often.
fn use_all_kinds(client: &Client, done: &AtomicBool) -> u64 {
    let cycles = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..2 {
            let cycles = &cycles;
            scope.spawn(move || {
                let fair = client.fair_mutex("fair").unwrap();
                let shared = client.rw_lock("shared").unwrap();
                let permits = client.semaphore("permits", 4).unwrap();
                let mine = client.fair_mutex(format!("fair:{number}")).unwrap();
                let _held = mine.lock().unwrap();
                while !done.load(Ordering::SeqCst) {
                    fair.lock().unwrap().unlock().unwrap();
                    shared.read().lock().unwrap().unlock().unwrap();
                    permits.acquire().unwrap().unlock().unwrap();
                    cycles.fetch_add(1, Ordering::SeqCst);
                    let_pass(Duration::from_millis(20));
                }
            });
        }
    });
    cycles.into_inner()
}

/// What is told, and at which cost, while `deleted` of `held` locks are deleted by another client.
fn losses_among(held: usize, deleted: usize, lease: Duration) {
    let server = RedisServer::start();
    let (client, losses) = holder(&server, lease);
    let other = self::client(&server, "");
    client.fair_mutex("once").unwrap().lock().unwrap().unlock().unwrap();
    let guards = hold(&client, held);
    let beside = LockOptions::new().watched(lease);
    let reading = client.rw_lock("read").unwrap();
    let _reader = reading.read().lock_with(&beside).unwrap();
    let _permits = client.semaphore("many permits", 4).unwrap().acquire_many(2).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let kinds = scope.spawn(|| use_all_kinds(&client, &done));
        let_pass(lease);
        let without = own_cpu_time();
        let_pass(lease);
        let without = own_cpu_time() - without;
        // Those that another client deletes, spread over all.
        let victims: Vec<_> = (0..deleted).map(|number| number * (held / deleted)).collect();
        let with = own_cpu_time();
        let watch = Stopwatch::start();
        let (mut told, tolerance) = with_tolerance(|| {
            let mut gone = Vec::with_capacity(deleted);
            for victim in &victims {
                let lock = other.mutex(name_of(*victim)).unwrap();
                assert!(lock.force_unlock().unwrap(), "{victim} was held");
                gone.push(SystemClock.now());
            }
            println!("{deleted} deleted within {:.1?}", watch.elapsed());
            eventually("each loss is told", LONG, || losses.lock().len() >= deleted);
            let losses = losses.lock();
            let told = |(victim, gone): (&usize, Moment)| losses[&name_of(*victim)].since(gone);
            victims.iter().zip(gone).map(told).collect::<Vec<_>>()
        });
        let_pass(lease.saturating_sub(watch.elapsed()));
        let with = own_cpu_time() - with;
        let_pass(lease / 2);
        done.store(true, Ordering::SeqCst);
        let cycles = kinds.join().unwrap();
        told.sort_unstable();
        let (p50, p99) = (told[told.len() / 2], told[told.len() * 99 / 100]);
        println!(
            "{held} held, {deleted} deleted: told after p50 {p50:.1?}, p99 {p99:.1?}, last {:.1?}; \
             processor time {with:.1?} in a lease of {lease:?}, {without:.1?} in the one before; \
             {cycles} cycles of other kinds",
            told[told.len() - 1]
        );
        let losses = losses.lock();
        let healthy = losses.keys().filter(|name| !victims.iter().any(|it| name_of(*it) == **name));
        assert_eq!(healthy.count(), 0, "healthy locks are lost");
        assert_eq!(losses.len(), deleted);
        let valid = guards.iter().filter(|guard| guard.is_valid()).count();
        assert_eq!(valid, held - deleted);
        let wanted = Duration::from_millis(100);
        let late = p99.saturating_sub(wanted);
        tolerance.must_cover(late, scaled(Duration::from_secs(3)), "losses were told");
        assert!(with < without * 4 + scaled(Duration::from_secs(2)), "{with:?} {without:?}");
    });
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn thousand_losses_among_a_hundred_thousand_locks_are_told_at_once() {
    alone("many_losses::thousand_losses_among_a_hundred_thousand_locks_are_told_at_once", || {
        losses_among(100_000, 1_000, scaled(Duration::from_secs(30)));
    });
}

#[test]
fn losses_among_many_locks_are_told_at_once() {
    alone("many_losses::losses_among_many_locks_are_told_at_once", || {
        losses_among(5_000, 100, scaled(Duration::from_secs(3)));
    });
}
