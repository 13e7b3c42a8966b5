//! Clients that wait for one held lock for the whole turn: what they send meanwhile.

use super::{Task, cpu_time, serve};
use crate::raw::Raw;
use crate::server::Counters;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Small, because there are many.
const STACK: usize = 64 * 1024;
/// After that the first attempts and the subscriptions are over.
const SETTLED: Duration = Duration::from_secs(5);

pub(super) fn run(task: &Task) {
    serve(|time| turn(task, time));
}

/// Each thread has a client, and so connections, of its own.
fn turn(task: &Task, time: Duration) -> Value {
    let (name, holder) = (task.lock(), task.client());
    let lock = holder.mutex(name.as_str()).expect("a name");
    let clients: Vec<_> = (0..task.threads).map(|_| task.client()).collect();
    let held = lock.lock().expect("it is free");
    let failed = AtomicU64::new(0);
    let mut raw = Raw::connect(task.port);
    let (requests, commands, cpu, freed) = std::thread::scope(|scope| {
        for client in &clients {
            let (lock, failed) = (client.mutex(name.as_str()).expect("a name"), &failed);
            let waiter = move || {
                let outcome = lock.lock().and_then(|guard| guard.unlock());
                failed.fetch_add(u64::from(outcome.is_err()), Ordering::Relaxed);
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread
                .spawn_scoped(scope, waiter)
                .expect("the system has room for the threads");
        }
        std::thread::sleep(SETTLED);
        let (before, cpu) = (Counters::of(&mut raw), cpu_time());
        std::thread::sleep(time);
        let (after, cpu) = (Counters::of(&mut raw), cpu_time() - cpu);
        let freed = Instant::now();
        held.unlock().expect("it is held");
        let requests = after.requests - before.requests;
        (requests, after.commands - before.commands, cpu, freed)
    });
    json!({
        "cycles": 1, "seconds": time.as_secs_f64(), "waiting_cpu": cpu,
        "waiting_requests": requests, "waiting_commands": commands,
        "served_per_s": task.threads as f64 / freed.elapsed().as_secs_f64(),
        "failed": failed.load(Ordering::Relaxed),
    })
}
