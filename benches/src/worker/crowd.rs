//! A workload in which many threads wait for few locks at the same time, until all are served.

use super::{Task, cpu_time, resident, serve, thread_count};
use crate::learn::{is_granted, url};
use crate::raw::{Raw, Reply, request};
use serde_json::{Value, json};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The stack of a waiting thread: small, because there are many threads.
const STACK: usize = 64 * 1024;

pub(super) fn run(task: &Task) {
    serve(|_| turn(task));
}

fn turn(task: &Task) -> Value {
    let mut raw = Raw::connect(task.port);
    let pair = task.learn();
    let name = |index: usize| format!("crowd:{index:06}");
    let holders: Vec<_> = (0..task.locks)
        .map(|lock| pair.requests(&name(lock), lock))
        .collect();
    for holder in &holders {
        assert!(is_granted(&raw.call(&holder.acquire)), "it was free");
    }
    let ours = url(task.port) + "?client_name=crowd";
    let client = distlock::connect(&ours).expect("a URL of ours");
    let (served, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let barrier = Barrier::new(task.threads + 1);
    let alone = resident();
    std::thread::scope(|scope| {
        for index in 0..task.threads {
            let lock = client.mutex(name(index % task.locks)).expect("a name");
            let (barrier, served, failed) = (&barrier, &served, &failed);
            let waiter = move || {
                barrier.wait();
                // A failure is counted and does not end the run: with so many waiters some requests
                // may time out.
                let outcome = lock.lock().and_then(|guard| guard.unlock());
                failed.fetch_add(u64::from(outcome.is_err()), Ordering::Relaxed);
                served.fetch_add(1, Ordering::Relaxed);
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread
                .spawn_scoped(scope, waiter)
                .expect("the system has room for the threads");
        }
        until(|| thread_count() > task.threads);
        let standing = resident();
        barrier.wait();
        let waiting = || {
            (0..task.locks)
                .map(|lock| client.queue_length(name(lock)).expect("a name"))
                .sum::<usize>()
        };
        until(|| waiting() == task.threads);
        let (queued, threads) = (resident(), thread_count() - task.threads);
        let mut connections = count(&mut raw);
        let (cpu, start) = (cpu_time(), Instant::now());
        for holder in &holders {
            raw.call(&holder.release);
        }
        until(|| {
            connections = connections.max(count(&mut raw));
            served.load(Ordering::Relaxed) == task.threads as u64
        });
        let each = |more: u64, less: u64| more.saturating_sub(less) / task.threads as u64;
        json!({
            "cycles": task.threads, "seconds": start.elapsed().as_secs_f64(),
            "cpu": cpu_time() - cpu,
            "memory": each(queued, standing), "thread_memory": each(standing, alone),
            "failed": failed.load(Ordering::Relaxed), "connections": connections,
            "threads": threads,
        })
    })
}

/// Returns the number of the client's connections.
fn count(raw: &mut Raw) -> usize {
    match raw.call(&request(&["CLIENT", "LIST"])) {
        Reply::Text(list) => {
            let list = String::from_utf8(list).expect("it is text");
            list.lines()
                .filter(|line| line.contains(" name=crowd "))
                .count()
        }
        other => panic!("CLIENT LIST answers {other:?}"),
    }
}

fn until(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < end, "not within two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
}
