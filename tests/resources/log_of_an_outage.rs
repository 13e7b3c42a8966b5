//! An outage of many locks writes few warnings to the log, but every loss.

use distlock::{Event, LockOptions};
use distlock_tests::log::Log;
use distlock_tests::own_process::alone;
use distlock_tests::process::RedisServer;
use distlock_tests::time::eventually;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LOCKS: usize = 2_000;

/// Returns the number of log lines with this text.
fn count(log: &Log, what: &str) -> usize {
    log.text()
        .lines()
        .filter(|line| line.contains(what))
        .count()
}

#[test]
fn outage_of_many_locks_logs_few_warnings_and_every_loss() {
    alone(
        "log_of_an_outage::outage_of_many_locks_logs_few_warnings_and_every_loss",
        || {
            let log = Log::default();
            let writer = log.clone();
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
                .with_writer(move || writer.clone())
                .init();
            let lost = Arc::new(Mutex::new(HashSet::new()));
            let failed = Arc::new(AtomicUsize::new(0));
            let (heard, counted) = (Arc::clone(&lost), Arc::clone(&failed));
            let handler = move |event: &Event| match event {
                Event::Lost { lock, .. } => {
                    heard.lock().insert(lock.clone());
                }
                Event::RenewalFailed { .. } => {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            };
            let mut server = RedisServer::start();
            let builder = distlock::builder().url(&server.url()).unwrap();
            let client = builder.events(Arc::new(handler)).connect().unwrap();
            let locks: Vec<_> = (0..LOCKS)
                .map(|n| client.owned_mutex(format!("log:{n}")).unwrap())
                .collect();
            let options = LockOptions::new().watched(Duration::from_secs(6));
            let guards: Vec<_> = locks
                .iter()
                .map(|lock| lock.lock_with(&options).unwrap())
                .collect();
            server.kill();
            eventually("all are lost", Duration::from_secs(60), || {
                lost.lock().len() == LOCKS
            });
            let (warnings, failures) = (count(&log, " WARN "), failed.load(Ordering::SeqCst));
            println!("{LOCKS} locks were lost: {warnings} warnings, {failures} events of renewals");
            assert!((1..100).contains(&warnings), "{warnings}");
            assert_eq!(count(&log, "lost lock="), LOCKS, "each loss is logged");
            // For each lock, at most one event per cause: refused, reset, or no answer.
            assert!(failures <= LOCKS * 3, "{failures}");
            assert!(guards.iter().all(|guard| !guard.is_valid()));
        },
    );
}
