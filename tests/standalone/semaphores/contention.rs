//! Clients and threads that contend for permits.

use super::{NAME, TAKEN, stored};
use distlock::{Error, LockOptions, Semaphore};
use distlock_tests::contenders::Contenders;
use distlock_tests::contenders::permits::{most_at_once, semaphore};
use distlock_tests::distance::Distance;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::redis::client;
use distlock_tests::resp::Request;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// The time limit of a wait for permits that must become free, also where many replies are lost.
const LONG: Duration = Duration::from_secs(180);

/// The number of permits that are held, and the largest number so far.
#[derive(Default)]
struct Inside {
    now: AtomicU32,
    most: AtomicU32,
}

impl Inside {
    fn visit(&self, semaphore: &Semaphore, count: u32) {
        self.try_visit(semaphore, count).unwrap();
    }

    fn try_visit(&self, semaphore: &Semaphore, count: u32) -> Result<(), Error> {
        let permits = semaphore
            .try_acquire_for_with(count, LONG, &LockOptions::new())?
            .expect("so many come free");
        let now = self.now.fetch_add(count, Ordering::SeqCst) + count;
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::yield_now();
        self.now.fetch_sub(count, Ordering::SeqCst);
        permits.unlock()
    }
}

#[test]
fn clients_and_threads_hold_no_more_than_the_limit() {
    const LIMIT: u32 = 4;
    let server = RedisServer::start();
    let inside = Inside::default();
    thread::scope(|scope| {
        for _ in 0..3 {
            let client = client(&server, "");
            for thread in 0..4 {
                let semaphore = client.semaphore(NAME, LIMIT).unwrap();
                let inside = &inside;
                scope.spawn(move || {
                    for turn in 0..25 {
                        inside.visit(&semaphore, 1 + (thread + turn) % 3);
                    }
                });
            }
        }
    });
    assert_eq!(inside.most.load(Ordering::SeqCst), LIMIT);
    let mut probe = server.probe();
    assert_eq!(probe.get(NAME).unwrap(), LIMIT.to_string());
    assert_eq!(probe.keys("*"), [NAME], "no permit is left");
}

/// If an operator removes one of an acquisition's three permits, the acquisition is lost, and its
/// other permits become free long before its lease ends.
#[test]
fn lost_permits_leave_none_behind() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "");
    let options = LockOptions::new().watched(LONG * 10);
    let held = client
        .semaphore(NAME, 3)
        .unwrap()
        .acquire_with(3, &options)
        .unwrap();
    probe.command(&["ZREMRANGEBYRANK", TAKEN, "0", "0"]);
    assert!(held.verify().unwrap_err().is_lost());
    eventually("the others are free", LONG, || {
        stored(&mut probe) == ("2".to_owned(), 0)
    });
}

/// Each release wakes the client, but only threads that have a chance send an attempt.
#[test]
fn threads_of_a_client_ask_about_once_for_a_permit() {
    const THREADS: u32 = 64;
    const TURNS: u32 = 20;
    let server = RedisServer::start();
    let client = client(&server, "");
    let semaphore = client.semaphore(NAME, 4).unwrap();
    drop(semaphore.acquire().unwrap());
    let mut probe = server.probe();
    probe.reset_stats();
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..TURNS {
                    let permit = semaphore.acquire().unwrap();
                    let_pass(Duration::from_millis(1));
                    permit.unlock().unwrap();
                }
            });
        }
    });
    let elapsed = watch.elapsed();
    // Each attempt calls `EXISTS` for its tombstone, and no other request does.
    let (attempts, grants) = (probe.command_calls("exists"), u64::from(THREADS * TURNS));
    println!("{attempts} attempts for {grants} grants, in {elapsed:?}");
    assert!(
        attempts < 3 * grants,
        "{attempts} attempts for {grants} grants"
    );
}

/// A thread whose deadline passes while the thread before it acquires a permit gets `None`, and not
/// the error of a store that does not answer.
#[test]
fn deadlines_in_line_are_no_errors_at_a_distance() {
    let server = RedisServer::start();
    let far = Distance::new(server.port(), Duration::from_millis(10));
    let client = distlock::connect(&format!("{}?command_timeout=30s", far.url())).unwrap();
    let semaphore = client.semaphore(NAME, 1).unwrap();
    let [granted, late] = [(); 2].map(|()| AtomicU32::new(0));
    thread::scope(|scope| {
        for thread in 0..8 {
            let (semaphore, granted, late) = (semaphore.clone(), &granted, &late);
            scope.spawn(move || {
                for turn in 0..20 {
                    let wait = Duration::from_millis(5 + (thread * 7 + turn * 3) % 40);
                    match semaphore.try_acquire_for(wait).expect("the store answers") {
                        Some(permit) => {
                            granted.fetch_add(1, Ordering::Relaxed);
                            permit.unlock().unwrap();
                        }
                        None => _ = late.fetch_add(1, Ordering::Relaxed),
                    }
                }
            });
        }
    });
    let [granted, late] = [granted, late].map(AtomicU32::into_inner);
    println!("{granted} granted, {late} late");
    assert!(granted > 0 && late > 0, "{granted} granted, {late} late");
}

/// No more permits than the limit are held while processes are killed, and while one is paused for
/// longer than its lease.
#[test]
fn limit_holds_while_holders_are_killed_and_paused() {
    const LIMIT: u32 = 5;
    let server = RedisServer::start();
    let url = format!("{}?watchdog=1s", server.url());
    let mut contenders = Contenders::start(&url, &semaphore(NAME, LIMIT), 3, 4);
    let visits = |contenders: &Contenders| {
        let before = contenders.claims().len();
        eventually("they go on", LONG, || {
            contenders.claims().len() > before + 100
        });
    };
    visits(&contenders);
    for _ in 0..4 {
        contenders.replace_first();
        visits(&contenders);
    }
    contenders.child(0).pause();
    let_pass(ms(1_500));
    visits(&contenders);
    contenders.child(0).resume();
    visits(&contenders);
    let most = most_at_once(&contenders.stop());
    assert_eq!(most, u64::from(LIMIT));
    let all = client(&server, "").semaphore(NAME, LIMIT).unwrap();
    eventually("all permits come back", LONG, || {
        all.try_acquire_with(LIMIT, &LockOptions::new())
            .unwrap()
            .is_some()
    });
    assert_eq!(stored(&mut server.probe()), (LIMIT.to_string(), 0));
}

/// A network that loses requests and replies, and delivers some when no client waits for them.
struct Losses(Mutex<fastrand::Rng>);

impl Plan for Losses {
    fn fate(&self, _: &mut Request) -> Fault {
        match self.0.lock().u32(0..1000) {
            0..15 => Fault::CutReply,
            15..25 => Fault::Cut,
            25..35 => Fault::SwallowReply,
            35..45 => Fault::Late(ms(400)),
            _ => Fault::Pass,
        }
    }
}

#[test]
fn lost_replies_count_no_permit_twice() {
    const LIMIT: u32 = 3;
    let server = RedisServer::start();
    let losses = Losses(Mutex::new(fastrand::Rng::with_seed(7)));
    let proxy = Proxy::new(server.port(), Arc::new(losses));
    // Leases far longer than the test, so that only releases and cleanups return permits.
    let url = format!(
        "{}?command_timeout=250ms&outage_limit=5m&watchdog=10m",
        proxy.url()
    );
    let inside = Inside::default();
    let clients = [(); 2].map(|()| distlock::connect(&url).unwrap());
    thread::scope(|scope| {
        for (client, thread) in clients.iter().flat_map(|it| (0..4).map(move |n| (it, n))) {
            let semaphore = client.semaphore(NAME, LIMIT).unwrap();
            let inside = &inside;
            scope.spawn(move || {
                for turn in 0..40 {
                    let _unanswered = inside.try_visit(&semaphore, 1 + (thread + turn) % 2);
                }
            });
        }
    });
    println!("{}", proxy.account());
    for client in &clients {
        client.wait_for_cleanup(LONG).unwrap();
    }
    let mut probe = server.probe();
    eventually("every permit is back", LONG, || {
        stored(&mut probe) == (LIMIT.to_string(), 0)
    });
    let_pass(ms(500));
    assert_eq!(
        stored(&mut probe),
        (LIMIT.to_string(), 0),
        "after the last late request"
    );
    assert_eq!(inside.most.load(Ordering::SeqCst), LIMIT);
}
