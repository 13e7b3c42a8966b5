//! Losses among very many held locks: the client reports each of them at once, and no other lock
//! suffers from it.

use distlock::time::{Clock, SystemClock};
use distlock::{Client, Loss, LossCause, Notification, OwnedGuard};
use distlock_tests::own_process::{alone, own_cpu_time};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::{Stopwatch, late, let_pass, retry_if_late, scaled, with_tolerance};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// How many threads take the locks, so that several requests are under way at a time.
const THREADS: usize = 8;

fn name_of(number: usize) -> String {
    format!("many:{number}")
}

/// Takes so many mutexes, and returns the guards in the order of the mutexes' numbers.
fn hold(client: &Client, count: usize) -> Vec<OwnedGuard> {
    thread::scope(|scope| {
        let take = |thread: usize| {
            let numbers = thread * count / THREADS..(thread + 1) * count / THREADS;
            let take = |number| client.owned_mutex(name_of(number)).unwrap().lock().unwrap();
            numbers.map(take).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || take(thread)))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Takes and releases locks of other kinds until `done`, and returns how many times.
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

#[test]
#[ignore = "long: tests/run.sh --all"]
fn thousand_losses_among_a_hundred_thousand_locks_are_told_at_once() {
    alone(
        "many_losses::thousand_losses_among_a_hundred_thousand_locks_are_told_at_once",
        || {
            retry_if_late(|| losses_among(100_000, 1_000));
        },
    );
}

/// Checks how soon losses are reported, and with how much processor time, while another client
/// deletes `deleted` of `held` locks.
fn losses_among(held: usize, deleted: usize) {
    let (server, lease) = (RedisServer::start(), scaled(Duration::from_secs(30)));
    let holds = builder(&server, "").configure(|config| config.with_watchdog(lease));
    let (holder, other) = (holds.connect().unwrap(), client(&server, ""));
    holder
        .fair_mutex("once")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    let guards = hold(&holder, held);
    println!("{held} locks are held");
    let reading = holder.rw_lock("read").unwrap();
    let _reader = reading.read().lock().unwrap();
    let _permits = holder
        .semaphore("many permits", 4)
        .unwrap()
        .acquire_many(2)
        .unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let kinds = scope.spawn(|| use_all_kinds(&holder, &done));
        let without = own_cpu_time();
        let_pass(lease);
        let without = own_cpu_time() - without;
        // The deleted locks are spread over all, so that most batches of renewals have one of them.
        let victims: Vec<_> = guards.iter().step_by(held / deleted).collect();
        let losses: Vec<_> = victims.iter().map(|guard| guard.losses()).collect();
        let with = own_cpu_time();
        let watch = Stopwatch::start();
        let ((gone, told), tolerance) = with_tolerance(|| {
            // The losses are received in the order of the deletions, so none was reported later
            // than the time noted here.
            let told = scope.spawn(|| {
                let told = |losses: Notification<Loss>| {
                    let loss = losses.recv_timeout(LONG).expect("it is told");
                    (loss.cause(), SystemClock.now())
                };
                losses.into_iter().map(told).collect::<Vec<_>>()
            });
            let delete = |victim: &&OwnedGuard| {
                let lock = other.mutex(victim.name().as_str()).unwrap();
                lock.force_unlock().unwrap();
                SystemClock.now()
            };
            let gone: Vec<_> = victims.iter().map(delete).collect();
            println!("{deleted} deleted within {:.1?}", watch.elapsed());
            (gone, told.join().unwrap())
        });
        let_pass(lease.saturating_sub(watch.elapsed()));
        let with = own_cpu_time() - with;
        let_pass(lease / 3);
        done.store(true, Ordering::SeqCst);
        let cycles = kinds.join().unwrap();
        let valid = guards.iter().filter(|guard| guard.is_valid()).count();
        let gone_first = told
            .iter()
            .filter(|(cause, _)| *cause == LossCause::Gone)
            .count();
        if valid < held - deleted || gone_first < deleted {
            late(
                lease,
                format!("{valid} of {held} are valid, {gone_first} were told as gone"),
            );
        }
        let mut took: Vec<_> = told
            .into_iter()
            .zip(gone)
            .map(|((_, told), gone)| told.since(gone))
            .collect();
        took.sort_unstable();
        let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
        println!(
            "told after p50 {p50:.1?}, p99 {p99:.1?}, last {:.1?}; processor time {with:.1?} in \
             {lease:?}, {without:.1?} in as long before; {cycles} cycles of other kinds",
            took[took.len() - 1]
        );
        assert!(
            with < without * 3 + scaled(Duration::from_secs(3)),
            "{with:?} {without:?}"
        );
        let overdue = p99.saturating_sub(Duration::from_millis(100));
        tolerance.must_cover(overdue, scaled(Duration::from_secs(4)), "losses were told");
    });
}
