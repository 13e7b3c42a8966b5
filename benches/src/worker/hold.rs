//! Many held locks, and nothing else: what renewing them costs.

use super::{Task, cpu_time, resident, serve, serve_and_look, thread_count, threads_called};
use crate::learn::{Renewals, is_granted, url};
use crate::raw::{Raw, Reply, request};
use distlock::backend::RENEW_BATCH;
use distlock::{Client, OwnedGuard};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Questions in one pipeline.
const DEPTH: usize = 1000;

pub(super) fn run(task: &Task) {
    match task.who.as_str() {
        "ours" => ours(task, |client| (0..task.locks).map(|index| hold(client, index)).collect()),
        "ours-burst" => ours(task, |client| burst(client, task)),
        "permits" => ours(task, |client| permits(client, task.locks)),
        "raw" => raw(task),
        "no-lock" => serve(|time| measured(time, 0, || std::thread::sleep(time))),
        other => panic!("no column is called {other:?}"),
    }
}

pub(super) fn name(index: usize) -> String {
    format!("held:{index:06}")
}

/// Processor time while `work` goes on, with what else is to be told.
fn measured(time: Duration, memory: u64, work: impl FnOnce()) -> Value {
    let (cpu, start) = (cpu_time(), Instant::now());
    work();
    json!({
        "cycles": 1, "seconds": start.elapsed().as_secs_f64(), "cpu": cpu_time() - cpu,
        "threads": thread_count(), "memory": memory, "turn": time.as_secs_f64(),
        "timer_threads": threads_called("distlock-timer"),
        "renewal_threads": threads_called("distlock-renew"),
        "spare_threads": threads_called("distlock-spare"),
    })
}

fn hold(client: &Client, index: usize) -> OwnedGuard {
    client.owned_mutex(name(index)).and_then(|lock| lock.lock()).expect("it is free")
}

/// So many permits of one semaphore, each in a guard of its own.
fn permits(client: &Client, count: usize) -> Vec<OwnedGuard> {
    let limit = u32::try_from(count).expect("not so many");
    let semaphore = client.semaphore("permits", limit).expect("a name");
    (0..count).map(|_| semaphore.acquire().expect("it is free")).collect()
}

/// All of them as soon as many threads can.
fn burst(client: &Client, &Task { threads, locks, .. }: &Task) -> Vec<OwnedGuard> {
    std::thread::scope(|scope| {
        let each =
            |first| move || (first..locks).step_by(threads).map(|i| hold(client, i)).collect();
        let threads: Vec<_> = (0..threads).map(|first| scope.spawn(each(first))).collect();
        let held = |thread: std::thread::ScopedJoinHandle<'_, Vec<OwnedGuard>>| {
            thread.join().expect("no panic")
        };
        threads.into_iter().flat_map(held).collect()
    })
}

/// How many locks the store does not have for half a lease at least. They are renewed after a
/// third: what has less was not, and what is not there is lost.
pub(super) fn lost(task: &Task) -> usize {
    if task.who == "permits" {
        return 0; // the guards know
    }
    let mut raw = Raw::connect(task.port);
    let least = i64::try_from(task.lease / 2).expect("a short time");
    let mut lost = 0;
    for first in (0..task.locks).step_by(DEPTH) {
        let some = first..task.locks.min(first + DEPTH);
        let questions: Vec<u8> =
            some.clone().flat_map(|index| request(&["PTTL", &name(index)])).collect();
        raw.send(&questions);
        for _ in some {
            match raw.read().expect("an answer") {
                Reply::Int(left) => lost += usize::from(left < least),
                other => panic!("PTTL answers {other:?}"),
            }
        }
    }
    lost
}

fn ours(task: &Task, hold: impl FnOnce(&Client) -> Vec<OwnedGuard>) {
    let lease = Duration::from_millis(task.lease);
    let client = distlock::builder()
        .url(&url(task.port))
        .expect("a URL of ours")
        .configure(|config| config.with_watchdog(lease))
        .connect()
        .expect("settings of ours");
    // The first makes connections and threads, which are not a lock's.
    drop(client.owned_mutex("first").and_then(|lock| lock.lock()).expect("it is free"));
    let before = resident();
    let held = hold(&client);
    if let Some(renewals) = task.cycles {
        // Each is renewed after a third of its lease. A sixth more, so that the last one is over.
        let rounds = u32::try_from(renewals).expect("not so many") / task.locks as u32;
        std::thread::sleep(lease / 3 * rounds + lease / 6);
        return assert!(held.iter().all(OwnedGuard::is_valid), "under valgrind, too");
    }
    let memory = (resident() - before) / task.locks as u64;
    serve_and_look(
        |time| measured(time, memory, || std::thread::sleep(time)),
        || {
            // A loss is final: what was lost at any time is not valid now. And the store may know
            // of more.
            let invalid = held.iter().filter(|guard| !guard.is_valid()).count();
            json!({ "lost": invalid.max(lost(task)) })
        },
    );
}

/// The same script with the same batch, evenly over a third of the lease, on a thread of its own.
fn raw(task: &Task) {
    let mut raw = Raw::connect(task.port);
    let before = resident();
    let script = Renewals::load(&mut raw, Duration::from_millis(task.lease));
    let acquires = task.learn();
    let mut renewals = Vec::new();
    for first in (0..task.locks).step_by(RENEW_BATCH) {
        let some = first..task.locks.min(first + RENEW_BATCH);
        let acquire = |index| acquires.requests(&name(index), index + 1).acquire;
        // Together: one by one, the first could be gone before the last is there.
        raw.send(&some.clone().flat_map(acquire).collect::<Vec<_>>());
        for _ in some.clone() {
            assert!(is_granted(&raw.read().expect("an answer")), "it is free");
        }
        let held: Vec<_> = some.map(|index| (name(index), acquires.owner(index + 1))).collect();
        renewals.push(request(&script.words(&held)));
    }
    let memory = (resident() - before) / task.locks as u64;
    let gap = Duration::from_millis(task.lease / 3) / u32::try_from(renewals.len()).expect("few");
    let gone = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&gone);
    std::thread::spawn(move || {
        let mut next = Instant::now();
        for renewal in renewals.iter().cycle() {
            next += gap;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let some = match raw.call(renewal) {
                Reply::Int(1) => 0,
                Reply::List(answers) => {
                    answers.iter().filter(|answer| !matches!(answer, Reply::Int(1))).count()
                }
                other => panic!("a renewal is answered {other:?}"),
            };
            told.fetch_add(some as u64, Ordering::Relaxed);
        }
    });
    serve_and_look(
        |time| measured(time, memory, || std::thread::sleep(time)),
        || json!({ "lost": (lost(task) as u64).max(gone.load(Ordering::Relaxed)) }),
    );
}
