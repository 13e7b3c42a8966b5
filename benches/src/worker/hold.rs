//! A workload of many held locks, to measure what their renewal costs.

use super::{Task, cpu_time, resident, serve, serve_and_look, thread_count, threads_called};
use crate::learn::{Renewals, is_granted, url};
use crate::raw::{Raw, Reply, request};
use distlock::backend::RENEW_BATCH;
use distlock::{Client, OwnedGuard};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name of a lock with very many holders.
const LARGE: &str = "large";

const PERMITS_OF_EACH: u32 = 1_000;

/// The number of requests in one pipeline, or of holders that one script adds.
const DEPTH: usize = 1000;

pub(super) fn run(task: &Task) {
    match task.who.as_str() {
        "ours" => ours(task, |client| {
            (0..task.locks).map(|index| hold(client, index)).collect()
        }),
        "ours-burst" => ours(task, |client| burst(client, task)),
        "permits" => ours(task, |client| permits(client, task.locks, 1)),
        "many-permits" => ours(task, |client| permits(client, task.locks, PERMITS_OF_EACH)),
        "force-permits" => forced(task, PERMIT, |client| {
            client
                .semaphore(LARGE, 1)
                .and_then(|it| it.force_release_all())
        }),
        "force-readers" => forced(task, READER, |client| {
            client
                .rw_lock(LARGE)
                .and_then(|it| it.write().force_unlock())
        }),
        "raw" => raw(task),
        "no-lock" => serve(|time| measured(time, 0, || std::thread::sleep(time))),
        other => panic!("no column is called {other:?}"),
    }
}

pub(super) fn name(index: usize) -> String {
    format!("held:{index:06}")
}

/// Runs `work`, and returns its processor time with the other figures of the process.
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
    client
        .owned_mutex(name(index))
        .and_then(|lock| lock.lock())
        .expect("it is free")
}

/// Returns `count` guards of one semaphore, each with `each` permits.
fn permits(client: &Client, count: usize, each: u32) -> Vec<OwnedGuard> {
    let limit = u32::try_from(count).expect("not so many") * each;
    let semaphore = client.semaphore("permits", limit).expect("a name");
    (0..count)
        .map(|_| semaphore.acquire_many(each).expect("it is free"))
        .collect()
}

/// A semaphore with very many holders: the Lua statement that adds holder `n`, and the number of
/// holders. [`READER`] is the same for a read-write lock.
const PERMIT: (&str, usize) = (
    "redis.call('ZADD', '{large}:timeout', 922337203685477, n)",
    1_000_000,
);
const READER: (&str, usize) = (
    "redis.call('HSET', 'large', 'mode', 'read', \
     'f81d4fae-7dec-11d0-a765-00a0c91e6bf6:' .. n, 1)",
    100_000,
);

/// Adds very many holders to a lock, and releases the lock by force once in a turn.
fn forced(
    task: &Task,
    (member, count): (&str, usize),
    force: impl Fn(&Client) -> Result<bool, distlock::Error>,
) {
    let client = distlock::connect(&url(task.port)).expect("settings of ours");
    let mut raw = Raw::connect(task.port);
    let script = format!("for n = ARGV[1], ARGV[2] do {member} end");
    for first in (0..count).step_by(DEPTH) {
        let (first, last) = (first.to_string(), (first + DEPTH - 1).to_string());
        raw.call(&request(&["EVAL", &script, "0", &first, &last]));
    }
    serve(|time| {
        measured(time, 0, || {
            assert!(force(&client).expect("it is there"), "it was held");
            std::thread::sleep(time);
        })
    });
}

/// Locks all locks with many threads, as fast as they can.
fn burst(client: &Client, &Task { threads, locks, .. }: &Task) -> Vec<OwnedGuard> {
    std::thread::scope(|scope| {
        let each = |first| {
            move || {
                (first..locks)
                    .step_by(threads)
                    .map(|i| hold(client, i))
                    .collect()
            }
        };
        let threads: Vec<_> = (0..threads).map(|first| scope.spawn(each(first))).collect();
        let held = |thread: std::thread::ScopedJoinHandle<'_, Vec<OwnedGuard>>| {
            thread.join().expect("no panic")
        };
        threads.into_iter().flat_map(held).collect()
    })
}

/// Returns how many locks are gone from the store or have less than half a lease left there. Locks
/// are renewed after a third of the lease, so a renewal of these is missing.
pub(super) fn lost(task: &Task) -> usize {
    if task.who.ends_with("permits") {
        return 0; // the guards know
    }
    let mut raw = Raw::connect(task.port);
    let least = i64::try_from(task.lease / 2).expect("a short time");
    let mut lost = 0;
    for first in (0..task.locks).step_by(DEPTH) {
        let some = first..task.locks.min(first + DEPTH);
        let questions: Vec<u8> = some
            .clone()
            .flat_map(|index| request(&["PTTL", &name(index)]))
            .collect();
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
    // The first lock creates connections and threads, whose memory must not count.
    drop(
        client
            .owned_mutex("first")
            .and_then(|lock| lock.lock())
            .expect("it is free"),
    );
    let before = resident();
    let held = hold(&client);
    if let Some(renewals) = task.cycles {
        // Each lock is renewed after a third of its lease. A sixth more lets the last renewal end.
        let rounds = u32::try_from(renewals).expect("not so many") / task.locks as u32;
        std::thread::sleep(lease / 3 * rounds + lease / 6);
        return assert!(held.iter().all(OwnedGuard::is_valid), "under valgrind, too");
    }
    let memory = (resident() - before) / task.locks as u64;
    serve_and_look(
        |time| measured(time, memory, || std::thread::sleep(time)),
        || {
            // A loss is final, so a guard that was lost at any time is invalid now. The store may
            // show more losses.
            let invalid = held.iter().filter(|guard| !guard.is_valid()).count();
            json!({ "lost": invalid.max(lost(task)) })
        },
    );
}

/// Renews the locks by a raw socket, with the library's script and batch size, evenly over a third
/// of the lease, on a thread of its own.
fn raw(task: &Task) {
    let mut raw = Raw::connect(task.port);
    let before = resident();
    let script = Renewals::load(&mut raw, Duration::from_millis(task.lease));
    let acquires = task.learn();
    let mut renewals = Vec::new();
    for first in (0..task.locks).step_by(RENEW_BATCH) {
        let some = first..task.locks.min(first + RENEW_BATCH);
        let acquire = |index| acquires.requests(&name(index), index + 1).acquire;
        // Each batch is acquired in one pipeline: one by one, the first lease could end before the
        // last lock is acquired.
        raw.send(&some.clone().flat_map(acquire).collect::<Vec<_>>());
        for _ in some.clone() {
            assert!(is_granted(&raw.read().expect("an answer")), "it is free");
        }
        let held: Vec<_> = some
            .map(|index| (name(index), acquires.owner(index + 1)))
            .collect();
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
                Reply::List(answers) => answers
                    .iter()
                    .filter(|answer| !matches!(answer, Reply::Int(1)))
                    .count(),
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
