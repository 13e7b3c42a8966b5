//! Many held locks, and nothing else: what renewing them costs.

use super::{Task, cpu_time, resident, serve, thread_count};
use crate::learn::{is_granted, url};
use crate::raw::{Raw, Reply, request};
use distlock::OwnedGuard;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As many as the library puts into one script.
const BATCH: usize = 100;

pub(super) fn run(task: &Task) {
    match task.who.as_str() {
        "ours" => ours(task),
        "raw" => raw(task),
        "nobody" => serve(|time| measured(time, 0, || std::thread::sleep(time))),
        other => panic!("no column is called {other:?}"),
    }
}

fn name(index: usize) -> String {
    format!("held:{index:06}")
}

/// Processor time while `work` goes on, with what else is to be told.
fn measured(time: Duration, memory: u64, work: impl FnOnce()) -> Value {
    let (cpu, start) = (cpu_time(), Instant::now());
    work();
    json!({
        "cycles": 1, "seconds": start.elapsed().as_secs_f64(), "cpu": cpu_time() - cpu,
        "threads": thread_count(), "memory": memory, "turn": time.as_secs_f64(),
    })
}

fn ours(task: &Task) {
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
    let held: Vec<OwnedGuard> = (0..task.locks)
        .map(|index| {
            client.owned_mutex(name(index)).and_then(|lock| lock.lock()).expect("it is free")
        })
        .collect();
    let memory = (resident() - before) / task.locks as u64;
    serve(|time| {
        let mut answer = measured(time, memory, || std::thread::sleep(time));
        // A loss is final: what was lost at any time is not valid now.
        answer["lost"] = json!(held.iter().filter(|guard| !guard.is_valid()).count());
        answer
    });
}

/// The same script with the same batch, evenly over a third of the lease, on a thread of its own.
fn raw(task: &Task) {
    let mut raw = Raw::connect(task.port);
    let before = resident();
    let hash = match raw.call(&request(&[
        "SCRIPT",
        "LOAD",
        include_str!("../../../lock-redis/src/lua/renew.lua"),
    ])) {
        Reply::Text(hash) => String::from_utf8(hash).expect("a hash is text"),
        other => panic!("the script is not taken: {other:?}"),
    };
    let lease = task.lease.to_string();
    let acquires = task.learn();
    let mut renewals = Vec::new();
    for first in (0..task.locks).step_by(BATCH) {
        let (mut keys, mut arguments) = (Vec::new(), Vec::new());
        for index in first..task.locks.min(first + BATCH) {
            let requests = acquires.requests(&name(index), index + 1);
            assert!(is_granted(&raw.call(&requests.acquire)), "it is free");
            keys.push(name(index));
            arguments.extend([lease.clone(), acquires.owner(index + 1)]);
        }
        let count = keys.len().to_string();
        let head = ["EVALSHA".to_owned(), hash.clone(), count];
        renewals.push(request(&[head.as_slice(), &keys, &arguments].concat()));
    }
    let memory = (resident() - before) / task.locks as u64;
    let gap = Duration::from_millis(task.lease / 3) / u32::try_from(renewals.len()).expect("few");
    let lost = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&lost);
    std::thread::spawn(move || {
        let mut next = Instant::now();
        for renewal in renewals.iter().cycle() {
            next += gap;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let gone = match raw.call(renewal) {
                Reply::Int(1) => 0,
                Reply::List(answers) => {
                    answers.iter().filter(|answer| !matches!(answer, Reply::Int(1))).count()
                }
                other => panic!("a renewal is answered {other:?}"),
            };
            told.fetch_add(gone as u64, Ordering::Relaxed);
        }
    });
    serve(|time| {
        let mut answer = measured(time, memory, || std::thread::sleep(time));
        answer["lost"] = json!(lost.load(Ordering::Relaxed));
        answer
    });
}
