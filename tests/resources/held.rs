//! Holding: the rhythm of renewals, many locks at once, and what the watchdog costs.

use distlock::{DistLock, Event, GuardState, LockOptions};
use distlock_tests::alone::{alone, own_cpu_time, own_threads};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client, counted};
use distlock_tests::time::{Stopwatch, always, let_pass, retry_if_late, scaled};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_short_lease_is_renewed_with_two_thirds_left() {
    alone("held::a_short_lease_is_renewed_with_two_thirds_left", || {
        retry_if_late(|| {
            let server = RedisServer::start();
            let lease = scaled(Duration::from_millis(1_500));
            let client = client(&server, "");
            let guard = client
                .mutex("rhythm")
                .unwrap()
                .lock_with(&LockOptions::new().watched(lease))
                .unwrap();
            let mut probe = server.probe();
            let mut least = lease;
            always("the lock is held", lease * 4, || {
                let left = probe.pttl("rhythm");
                least = least.min(left.unwrap_or_default());
                left.is_some()
            });
            println!("least that was left of {lease:?}: {least:?}");
            assert!(least > lease / 2, "a renewal was late: {least:?} were left of {lease:?}");
            assert!(
                least < lease * 3 / 4,
                "renewals are sent at a third of the lease, not all the time: {least:?}"
            );
            guard.unlock().unwrap();
        });
    });
}

#[test]
fn three_thousand_quick_cycles_start_no_renewals() {
    alone("held::three_thousand_quick_cycles_start_no_renewals", || {
        let server = RedisServer::start();
        let lease = scaled(Duration::from_millis(1_500));
        let client =
            builder(&server, "").configure(|config| config.with_watchdog(lease)).connect().unwrap();
        let lock = client.mutex("quick").unwrap();
        for _ in 0..3_000 {
            lock.lock().unwrap().unlock().unwrap();
        }
        let guard = lock.lock().unwrap();
        let mut probe = server.probe();
        probe.reset_stats();
        let periods = 10;
        let_pass(lease / 3 * periods);
        let sent = counted(&mut probe).scripts;
        println!("renewals in {periods} periods: {sent}");
        // The first comes up to a quarter of a period early.
        assert!(
            (u64::from(periods) - 2..=u64::from(periods) + 1).contains(&sent),
            "{sent} renewals in {periods} periods"
        );
        guard.unlock().unwrap();
    });
}

#[test]
fn ten_thousand_locks_stay_held_for_ten_leases() {
    alone("held::ten_thousand_locks_stay_held_for_ten_leases", || {
        const LOCKS: usize = 10_000;
        let server = RedisServer::start();
        let lease = scaled(Duration::from_secs(6));
        // What was left of each validity when its renewal was sent, in thirtieths of the lease.
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
        // The store's own word on all of them at once, ten times in every lease.
        let mut least = i64::MAX;
        let all = "local least = 2 ^ 52 for n = 0, ARGV[1] - 1 do least = math.min(least, redis.call('PTTL', 'many:' .. n)) end return least";
        for _ in 0..100 {
            let_pass(lease / 10);
            least = least.min(probe.command(&["EVAL", all, "0", &LOCKS.to_string()]).int());
        }
        let least =
            Duration::from_millis(u64::try_from(least).expect("one has ended, or lost its lease"));
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
        // Due at two thirds; a machine with other work lets some of them wait.
        let share = |of: &[u64]| of.iter().sum::<u64>() as f64 / sent.iter().sum::<u64>() as f64;
        assert!(share(&sent[..19]) < 0.05, "with less than 63 % of the lease left: {sent:?}");
        assert!(share(&sent[..15]) == 0.0, "with less than half of the lease left: {sent:?}");
        assert!(least > lease / 3, "{least:?} were left of {lease:?}");
        assert_eq!(threads.iter().filter(|name| name.contains("timer")).count(), 1, "{threads:?}");
        assert_eq!(threads.iter().filter(|name| name.contains("lane")).count(), 1, "{threads:?}");
        // On a machine that keeps an answer waiting for 20 ms others renew meanwhile, and no more of them than three.
        let reliefs = threads.iter().filter(|name| name.contains("relief")).count();
        assert!(reliefs <= 3 && threads.len() - reliefs <= 4, "{threads:?}");
        drop(guards); // which does not wait for the answers
        client.settle(scaled(Duration::from_secs(10))).unwrap();
        assert_eq!(probe.keys("many:*"), Vec::<String>::new());
    });
}
