//! A workload of nested holds: each cycle locks and unlocks a lock that the thread already holds.
//! The reference is a local reentrant lock, either free, so that a cycle is two atomic operations,
//! or already held, so that a cycle is only a counter.

use super::{Task, cpu_time, serve};
use crate::learn::url;
use parking_lot::ReentrantMutex;
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

pub(super) fn run(task: &Task) {
    let store = if task.who == "memory" {
        "memory://".to_owned()
    } else {
        url(task.port)
    };
    let client = distlock::connect(&store).expect("a URL of ours");
    let lock = client
        .mutex(format!("nested:{}", std::process::id()))
        .expect("a name");
    let _outer = lock.lock().expect("the store is there");
    let local = ReentrantMutex::new(());
    let _held = (task.who == "parking_lot-held").then(|| local.lock());
    let ours = || {
        lock.lock()
            .and_then(|guard| guard.unlock())
            .expect("it is held");
    };
    let peer = || drop(black_box(black_box(&local).lock()));
    let cycle: &dyn Fn() = if task.who.starts_with("parking_lot") {
        &peer
    } else {
        &ours
    };
    if let Some(cycles) = task.cycles {
        return (0..cycles).for_each(|_| cycle());
    }
    serve(|time| {
        let (cpu, start) = (cpu_time(), Instant::now());
        let mut cycles = 0;
        while start.elapsed() < time {
            (0..256).for_each(|_| cycle());
            cycles += 256;
        }
        let seconds = start.elapsed().as_secs_f64();
        json!({ "cycles": cycles, "seconds": seconds, "cpu": cpu_time() - cpu })
    });
}
