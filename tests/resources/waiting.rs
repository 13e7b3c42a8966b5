//! The cost of waiting on the server, the order of grants, and what ends a wait.

use distlock::{Client, Interrupt, Mutex};
use distlock_tests::own_process::alone;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client, counted};
use distlock_tests::time::{Stopwatch, eventually};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Starts `count` threads that wait for the lock one after the other, and returns the order in
/// which they got it.
fn serve(client: &Client, lock: &Mutex, count: usize, start: impl FnOnce()) -> Vec<usize> {
    let (served, order) = mpsc::channel();
    let threads: Vec<_> = (0..count)
        .map(|n| {
            let (inner, served) = (lock.clone(), served.clone());
            let thread = thread::Builder::new().stack_size(128 << 10).spawn(move || {
                let guard = inner.lock().unwrap();
                served.send(n).unwrap();
                guard.unlock().unwrap();
            });
            // Most of the thousand threads are in the queue within microseconds, so the test yields
            // before it sleeps.
            let queues = || client.queue_length("crowd").unwrap() == n + 1;
            let is_quick = (0..1_000).any(|_| {
                thread::yield_now();
                queues()
            });
            if !is_quick {
                eventually("the thread queues", LONG, queues);
            }
            thread.unwrap()
        })
        .collect();
    start();
    for thread in threads {
        thread.join().unwrap();
    }
    order.try_iter().collect()
}

#[test]
fn thousand_waiters_in_order_cost_at_most_one_acquire_each() {
    alone(
        "waiting::thousand_waiters_in_order_cost_at_most_one_acquire_each",
        || {
            let server = RedisServer::start();
            let client = client(&server, "pool=8&tracking=off");
            let lock = client.mutex("crowd").unwrap();
            lock.lock().unwrap().unlock().unwrap();
            let mut probe = server.probe();
            probe.reset_stats();

            // Held by a thread of the same process: no request asks the store for the holder, and
            // most waiters get the lock by a hand-off.
            let guard = lock.lock().unwrap();
            let order = serve(&client, &lock, 1_000, || guard.unlock().unwrap());
            assert_eq!(order, (0..1_000).collect::<Vec<_>>(), "overtakes");
            let own = counted(&mut probe);
            println!("held by the same process: {own:?}");
            assert!(
                own.acquires <= 1_001 && own.acquires == own.releases,
                "{own:?}"
            );
            assert_eq!(own.subscriptions, 0);

            // Held by another client: the head of the queue finds the lock busy, subscribes, tries
            // again, and is woken by the release.
            let stranger = builder(&server, "client_name=stranger").connect().unwrap();
            let held = stranger.mutex("crowd").unwrap().lock().unwrap();
            probe.reset_stats();
            let order = serve(&client, &lock, 1_000, || held.unlock().unwrap());
            assert_eq!(order, (0..1_000).collect::<Vec<_>>(), "overtakes");
            let shared = counted(&mut probe);
            println!("held by another client: {shared:?}");
            assert_eq!(shared.subscriptions, 1);
            assert!(shared.releases <= 1_001, "{shared:?}");
            assert!(
                shared.acquires <= 1_001 + shared.subscriptions,
                "{shared:?}"
            );

            let ours = probe
                .clients()
                .iter()
                .filter(|line| line.contains("name=distlock"))
                .count();
            println!("connections of the client that waits: {ours}, with pool=8");
            assert!(ours <= 8 + 2, "pool + 2");
        },
    );
}

#[test]
fn interrupt_wakes_a_waiter_at_once_and_leaves_no_key() {
    alone(
        "waiting::interrupt_wakes_a_waiter_at_once_and_leaves_no_key",
        || {
            let server = RedisServer::start();
            let holder = client(&server, "tokens=off");
            let held = holder.mutex("wanted").unwrap().lock().unwrap();
            let client = client(&server, "tokens=off");
            let lock = client.mutex("wanted").unwrap();
            let mut probe = server.probe();
            let before = probe.keys("*");
            let mut times = Vec::new();
            for _ in 0..100 {
                let interrupt = Interrupt::new();
                let (inner, waits) = (lock.clone(), interrupt.clone());
                let waiter = thread::spawn(move || inner.lock_interruptibly(&waits).unwrap_err());
                eventually("it waits", LONG, || {
                    client.queue_length("wanted").unwrap() == 1
                });
                let watch = Stopwatch::start();
                interrupt.fire();
                assert!(waiter.join().unwrap().is_interrupted());
                times.push(watch.elapsed());
            }
            times.sort();
            println!(
                "from fire() to the end of the waiting thread: p50 {:?}, p99 {:?}",
                times[50], times[98]
            );
            // Without the wake-up a waiter would notice the interrupt only at its next attempt,
            // once a second.
            let all = times.iter().sum::<Duration>();
            assert!(
                all < Duration::from_secs(20),
                "{all:?} for a hundred interrupts"
            );
            assert_eq!(probe.keys("*"), before, "the holder's key and nothing else");
            held.unlock().unwrap();
            assert_eq!(probe.keys("*"), Vec::<String>::new());
        },
    );
}

#[test]
fn waiter_of_another_client_is_woken_by_the_release() {
    alone(
        "waiting::waiter_of_another_client_is_woken_by_the_release",
        || {
            let server = RedisServer::start();
            let (one, two) = (client(&server, ""), client(&server, ""));
            let (here, there) = (one.mutex("baton").unwrap(), two.mutex("baton").unwrap());
            let mut times = Vec::new();
            for _ in 0..200 {
                let guard = here.lock().unwrap();
                let waiter = thread::spawn({
                    let there = there.clone();
                    move || {
                        let guard = there.lock().unwrap();
                        let woken = Stopwatch::start();
                        guard.unlock().unwrap();
                        woken
                    }
                });
                eventually("it waits", LONG, || two.queue_length("baton").unwrap() == 1);
                let watch = Stopwatch::start();
                guard.unlock().unwrap();
                let woken = waiter.join().unwrap();
                times.push(watch.elapsed().saturating_sub(woken.elapsed()));
            }
            times.sort();
            println!(
                "from unlock to the other client's grant: p50 {:?}, p99 {:?}",
                times[100], times[198]
            );
            assert!(
                times[100] < Duration::from_secs(5),
                "not by waiting for the lease of 30 s"
            );
        },
    );
}
