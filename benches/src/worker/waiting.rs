//! A workload of clients that wait for one held lock for the whole turn, to count what they send
//! meanwhile.

use super::{Task, cpu_time, serve};
use crate::learn::count_sent;
use crate::raw::Raw;
use crate::server::Counters;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The stack of a waiting thread: small, because there are many threads.
const STACK: usize = 64 * 1024;
/// The time before the measurement, so that the first attempts and subscriptions do not count.
const SETTLED: Duration = Duration::from_secs(5);
/// The time of the count by MONITOR, and the longest time for which waiters are served: limited,
/// because there may be too many waiters to serve all.
const SHORT: Duration = Duration::from_secs(4);

pub(super) fn run(task: &Task) {
    serve(|time| turn(task, time));
}

/// Runs a turn in which each thread waits with its own client, and so its own connections. The
/// threads end with the process.
fn turn(task: &Task, time: Duration) -> Value {
    let (name, holder) = (task.lock(), task.client());
    let lock = holder.mutex(name.as_str()).expect("a name");
    let clients: Vec<_> = (0..task.threads).map(|_| task.client()).collect();
    let held = lock.lock().expect("it is free");
    let [served, failed] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let mut raw = Raw::connect(task.port);
    for client in clients {
        let counts = [&served, &failed].map(Arc::clone);
        let lock = client.mutex(name.as_str()).expect("a name");
        let waiter = move || {
            let _open = &client;
            let outcome = lock.lock().and_then(|guard| guard.unlock());
            counts[usize::from(outcome.is_err())].fetch_add(1, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread
            .spawn(waiter)
            .expect("the system has room for the threads");
    }
    std::thread::sleep(SETTLED);
    let (before, cpu) = (Counters::of(&mut raw), cpu_time());
    std::thread::sleep(time);
    let (after, cpu) = (Counters::of(&mut raw), cpu_time() - cpu);
    let ((), sent) = count_sent(task.port, || std::thread::sleep(SHORT));
    let freed = Instant::now();
    // With so many waiting clients a renewal may have been late, and the lock lost.
    let lost = held.unlock().is_err();
    let [served, failed] = [served, failed].map(|count| move || count.load(Ordering::Relaxed));
    while served() + failed() < task.threads && freed.elapsed() < SHORT {
        std::thread::sleep(Duration::from_millis(5));
    }
    json!({
        "cycles": 1, "seconds": time.as_secs_f64(), "waiting_cpu": cpu,
        "waiting_requests": after.requests - before.requests,
        "waiting_commands": after.commands - before.commands,
        "sent": sent, "sent_seconds": SHORT.as_secs_f64(),
        "served_per_s": served() as f64 / freed.elapsed().as_secs_f64(),
        "failed": failed(), "lost": u8::from(lost),
    })
}
