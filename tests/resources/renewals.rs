//! The intervals of renewals, many locks at once, and the cost of the watchdog.

use distlock::{Event, GuardState, LockOptions};
use distlock_tests::own_process::{alone, own_cpu_time, own_threads};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::{Stopwatch, eventually, let_pass, scaled, with_tolerance};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

#[test]
fn short_lease_is_renewed_with_two_thirds_left() {
    alone(
        "renewals::short_lease_is_renewed_with_two_thirds_left",
        || {
            let server = RedisServer::start();
            let lease = scaled(Duration::from_secs(3));
            let client = client(&server, "");
            let watched = LockOptions::new().watched(lease);
            let guard = client.mutex("rhythm").unwrap().lock_with(&watched).unwrap();
            let mut probe = server.probe();
            let (before, mut least) = (probe.command_calls("pexpire"), lease);
            let ((), tolerance) = with_tolerance(|| {
                eventually("it is renewed again and again", LONG, || {
                    let renewals = probe.command_calls("pexpire") - before;
                    least = least.min(probe.pttl("rhythm").expect("the lock is held"));
                    renewals >= 4
                });
            });
            println!("least that was left of {lease:?}: {least:?}");
            assert!(
                least < lease * 3 / 4,
                "renewals are sent at a third of the lease, not all the time: {least:?}"
            );
            guard.unlock().unwrap();
            // A renewal with one third of the lease left would be the second attempt, not the
            // first.
            let overdue = (lease * 2 / 3).saturating_sub(least);
            let what = format!("a renewal was late: {least:?} were left of {lease:?}");
            tolerance.must_cover(overdue, lease / 6, &what);
        },
    );
}

#[test]
fn three_thousand_quick_cycles_start_no_renewals() {
    alone(
        "renewals::three_thousand_quick_cycles_start_no_renewals",
        || {
            let server = RedisServer::start();
            let lease = scaled(Duration::from_secs(3));
            let client = builder(&server, "tracking=off")
                .configure(|config| config.with_watchdog(lease))
                .connect()
                .unwrap();
            let lock = client.mutex("quick").unwrap();
            for _ in 0..3_000 {
                lock.lock().unwrap().unlock().unwrap();
            }
            let guard = lock.lock().unwrap();
            let mut probe = server.probe();
            let (before, watch) = (probe.command_calls("pexpire"), Stopwatch::start());
            let sent = eventually("the one that is held is renewed", LONG, || {
                let sent = probe.command_calls("pexpire") - before;
                (sent >= 3).then_some(sent)
            });
            let periods = watch.elapsed().as_secs_f64() / (lease / 3).as_secs_f64();
            println!("renewals in {periods:.1} periods: {sent}");
            // The first comes up to a quarter of a period early.
            assert!(
                (sent as f64) < periods + 1.5,
                "{sent} renewals in {periods:.1} periods"
            );
            guard.unlock().unwrap();
        },
    );
}

#[test]
fn ten_thousand_locks_stay_held_for_two_leases() {
    alone(
        "renewals::ten_thousand_locks_stay_held_for_two_leases",
        || {
            ten_thousand_locks_stay_held(2);
        },
    );
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn ten_thousand_locks_stay_held_for_ten_leases() {
    alone(
        "renewals::ten_thousand_locks_stay_held_for_ten_leases",
        || {
            ten_thousand_locks_stay_held(10);
        },
    );
}

fn ten_thousand_locks_stay_held(leases: u32) {
    const LOCKS: usize = 10_000;
    let server = RedisServer::start();
    let lease = scaled(Duration::from_secs(6));
    // How much of a validity was left when the renewal was sent, counted by thirtieths of the
    // lease.
    let sent = Arc::new(Mutex::new([0_u64; 31]));
    let histogram = Arc::clone(&sent);
    let handler = move |event: &Event| match event {
        Event::Renewed { left, .. } => {
            let part = (left.as_secs_f64() / lease.as_secs_f64() * 30.0) as usize;
            histogram.lock()[part.min(30)] += 1;
        }
        Event::Missed { count, .. } => panic!("the histogram misses {count} events"),
        Event::Lost { .. } | Event::RenewalFailed { .. } => panic!("{event:?}"),
        _ => {}
    };
    let client = builder(&server, "")
        .configure(|config| config.with_watchdog(lease))
        .events(Arc::new(handler))
        .connect()
        .unwrap();
    let guards: Vec<_> = (0..LOCKS)
        .map(|n| client.mutex(format!("many:{n}")).unwrap().lock().unwrap())
        .collect();
    let mut probe = server.probe();
    let (cpu, server_cpu, watch) = (own_cpu_time(), server.cpu_time(), Stopwatch::start());
    probe.reset_stats();
    // The shortest remaining time of any lock in the store, read ten times in every lease.
    let mut least = i64::MAX;
    let all = "local least = 2 ^ 52 for n = 0, ARGV[1] - 1 do least = math.min(least, redis.call('PTTL', 'many:' .. n)) end return least";
    let ((), tolerance) = with_tolerance(|| {
        for _ in 0..leases * 10 {
            let_pass(lease / 10);
            least = least.min(probe.command(&["EVAL", all, "0", &LOCKS.to_string()]).int());
        }
    });
    let least =
        Duration::from_millis(u64::try_from(least).expect("a lock is gone, or has no expiry"));
    let (time, scripts) = (watch.elapsed(), probe.command_calls("evalsha"));
    let (cpu, server_cpu) = (own_cpu_time() - cpu, server.cpu_time() - server_cpu);
    let threads = own_threads();
    let sent = *sent.lock();
    println!(
        "{LOCKS} locks for {time:.1?} with a lease of {lease:?}: {scripts} scripts, processor time {cpu:?} here, {server_cpu:?} on the server"
    );
    println!(
        "left of the lease when a renewal was sent, by thirtieths: {sent:?}; least seen in the store: {least:?}"
    );
    println!("threads: {threads:?}");
    assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
    assert_eq!(
        threads.iter().filter(|name| name.contains("timer")).count(),
        1,
        "{threads:?}"
    );
    assert_eq!(
        threads.iter().filter(|name| name.contains("renew")).count(),
        1,
        "{threads:?}"
    );
    // While an answer takes more than 20 ms, up to three spare workers renew, and a temporary task
    // reads late replies.
    let count = |part| threads.iter().filter(|name| name.contains(part)).count();
    let (spares, tasks) = (count("spare"), count("-task"));
    assert!(
        spares <= 3 && tasks <= 1 && threads.len() - spares - tasks <= 5,
        "{threads:?}"
    );
    drop(guards); // which does not wait for the answers
    client
        .wait_for_cleanup(scaled(Duration::from_secs(10)))
        .unwrap();
    assert_eq!(probe.keys("many:*"), Vec::<String>::new());
    // A renewal is due when two thirds of the lease are left.
    let overdue = (lease * 2 / 3).saturating_sub(least);
    let what = format!("renewed with so many thirtieths left: {sent:?}; the least: {least:?}");
    tolerance.must_cover(overdue, lease / 4, &what);
}
