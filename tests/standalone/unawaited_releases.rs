//! Asynchronous releases: each outcome is reported once, even if the link is not used again.

use crate::bench::{Bench, LONG, name, soon, within};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, eventually, within as takes_no_longer_than};
use lock_core::backend::{AcquisitionId, Failure, OnReleased, Release, ReleaseOptions};
use lock_core::{Clock, SystemClock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

type Told = Receiver<Result<Release, Failure>>;

fn done() -> (OnReleased, Told) {
    let (tell, told) = channel();
    (Box::new(move |outcome| tell.send(outcome).unwrap()), told)
}

fn submit(bench: &Bench, acquisition: &AcquisitionId, patience: Duration) -> Told {
    let (done, told) = done();
    bench.backend.submit_release(
        acquisition,
        ReleaseOptions::WITHOUT_TOMBSTONE,
        within(patience),
        done,
    );
    told
}

/// Returns a bench whose server knows the scripts. Otherwise the first release would be sent twice,
/// and the next request would come in between.
fn knowing(server: &RedisServer) -> Bench {
    let bench = Bench::on(server);
    let (held, _) = bench.take("first");
    assert_eq!(bench.release(&held), Release::Freed);
    bench
}

/// Returns the reported outcome, and asserts that it was reported once.
fn only(told: &Told) -> Result<Release, Failure> {
    let outcome = told.recv_timeout(LONG).unwrap();
    assert!(told.recv_timeout(LONG).is_err(), "told twice");
    outcome
}

#[test]
fn async_release_completes_without_further_requests() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    for closing in [
        ReleaseOptions::WITHOUT_TOMBSTONE,
        ReleaseOptions::WITH_TOMBSTONE,
    ] {
        let (held, _) = bench.take("a");
        let (done, told) = done();
        bench.backend.submit_release(&held, closing, soon(), done);
        eventually("it is free", LONG, || !server.probe().exists("a"));
        assert_eq!(only(&told).unwrap(), Release::Freed);
    }
    let (held, _) = bench.take("a");
    assert_eq!(bench.release(&held), Release::Freed);
    assert_eq!(only(&submit(&bench, &held, LONG)).unwrap(), Release::Gone);
}

#[test]
fn next_request_reads_the_async_release_reply() {
    let server = RedisServer::start();
    let bench = knowing(&server);
    for _ in 0..100 {
        let (held, _) = bench.take("a");
        let told = submit(&bench, &held, LONG);
        // Granted, because the release was sent before.
        let (next, _) = bench.take("a");
        assert_eq!(only(&told).unwrap(), Release::Freed);
        assert_eq!(bench.release(&next), Release::Freed);
    }
}

#[test]
fn async_release_resends_a_flushed_script() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    server.probe().command(&["SCRIPT", "FLUSH"]);
    assert_eq!(only(&submit(&bench, &held, LONG)).unwrap(), Release::Freed);
    assert!(!server.probe().exists("a"));
}

#[test]
fn missing_async_reply_is_told_at_the_deadline() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    server.pause();
    let watch = Stopwatch::start();
    let patient = submit(&bench, &held, LONG);
    assert!(watch.elapsed() < LONG / 3, "it does not wait");
    let deadline = Duration::from_millis(200);
    let (watch, told) = (Stopwatch::start(), submit(&bench, &held, deadline));
    let outcome = takes_no_longer_than(deadline, || only(&told));
    assert!(matches!(outcome, Err(Failure::Unknown(_))), "{outcome:?}");
    let took = watch.elapsed();
    assert!(took >= deadline, "{took:?}");
    server.kill();
    let outcome = only(&patient);
    assert!(
        matches!(outcome, Err(Failure::NotSent(_) | Failure::Unknown(_))),
        "{outcome:?}"
    );
    let outcome = only(&submit(&bench, &held, LONG));
    assert!(
        matches!(outcome, Err(Failure::NotSent(_) | Failure::Unknown(_))),
        "{outcome:?}"
    );
}

#[test]
fn dropped_backend_still_reports_async_releases() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    let told = submit(&bench, &held, LONG);
    drop(bench);
    assert_eq!(only(&told).unwrap(), Release::Freed);
    let mut probe = server.probe();
    eventually("the connection is closed", LONG, || {
        probe.connections() == 0
    });
}

#[test]
fn many_async_releases_are_each_reported_once() {
    let server = RedisServer::start();
    let bench = knowing(&server);
    let all: Vec<Told> = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|thread| {
                let bench = &bench;
                scope.spawn(move || {
                    let lock = format!("crowd:{thread}");
                    let cycle = |_| submit(bench, &bench.take(&lock).0, LONG);
                    (0..200).map(cycle).collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    for told in &all {
        assert_eq!(told.recv_timeout(LONG).unwrap().unwrap(), Release::Freed);
        // The callback is dropped a moment later, without a second report.
        assert_eq!(
            told.recv_timeout(LONG).unwrap_err(),
            RecvTimeoutError::Disconnected
        );
    }
    assert_eq!(
        bench
            .backend
            .inspect(&name("crowd:0"), soon())
            .unwrap()
            .holder,
        None
    );
}

#[test]
fn replaced_link_is_dropped_under_async_releases() {
    let server = RedisServer::start();
    let bench = knowing(&server);
    let (held, _) = bench.take("a");
    server.pause();
    let outcome = only(&submit(&bench, &held, Duration::from_millis(400)));
    assert!(matches!(outcome, Err(Failure::Unknown(_))), "{outcome:?}");
    // The link was silent for longer than replies take, so this request needs another link.
    let outcome = bench
        .backend
        .inspect(&name("a"), within(Duration::from_millis(200)));
    assert!(matches!(outcome, Err(Failure::NotSent(_))), "{outcome:?}");
    server.resume();
    let (is_over, mut probe) = (AtomicBool::new(false), server.probe());
    // From here on there is a new link.
    bench.take("b");
    thread::scope(|scope| {
        for thread in 0..4 {
            let (bench, is_over) = (&bench, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let (held, _) = bench.take(&format!("crowd:{thread}"));
                    bench.backend.submit_release(
                        &held,
                        ReleaseOptions::WITHOUT_TOMBSTONE,
                        soon(),
                        Box::new(drop),
                    );
                }
            });
        }
        let by = within(LONG);
        let mut is_let_go = false;
        while !is_let_go && SystemClock.now() < by {
            is_let_go = probe.connections() == 1;
        }
        is_over.store(true, Ordering::SeqCst);
        assert!(is_let_go, "{} connections", probe.connections());
    });
}
