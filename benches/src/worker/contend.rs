//! A workload in which all threads of all processes want one lock. Each thread records when it
//! entered and when it began to release, on a clock that all processes share. From these visits the
//! parent computes changes of owner, shares and hand-off times, and whether two threads were inside
//! at the same time.

use super::direct_grant::DirectGrant;
use super::{Task, cpu_time, nanos, pause, serve};
use crate::learn::{Requests, is_granted};
use crate::raw::{Raw, Reply, request};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time after which a waiter tries again, because it may have missed a message.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A thread that wants the lock: `cycle` locks, calls `inside`, and unlocks.
pub(super) trait Contender: Send {
    fn cycle(&mut self, inside: &mut dyn FnMut());
}

pub(super) fn run(task: &Task) {
    let mut contenders = contenders(task);
    let log = tempfile::NamedTempFile::new().expect("a file of our own");
    serve(|time| {
        let (visits, answer) = turn(task, &mut contenders, time);
        let bytes: Vec<u8> = visits
            .iter()
            .flatten()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        std::fs::write(log.path(), bytes).expect("there is room for a log");
        let mut answer = answer;
        answer["log"] = json!(log.path());
        answer
    });
}

fn contenders(task: &Task) -> Vec<Box<dyn Contender>> {
    // Each column has its own lock, and so its own channel: columns that wait for their turn stay
    // subscribed.
    let name = task.lock();
    if let "ours" | "ours-fair" = task.who.as_str() {
        let client = task.client();
        let lock = || Box::new(client.mutex(name.as_str()).expect("a name")) as Box<dyn Contender>;
        return (0..task.threads).map(|_| lock()).collect();
    }
    let number = |index| std::process::id() as usize * 1000 + index;
    if task.who == "direct-grant" {
        let contender = |index| DirectGrant::new(task.port, &name, number(index));
        return (0..task.threads)
            .map(|index| Box::new(contender(index)) as _)
            .collect();
    }
    let pair = task.learn();
    let gate = Arc::new(Mutex::new(()));
    (0..task.threads)
        .map(|index| -> Box<dyn Contender> {
            let retry = PublishRetry::new(task.port, &name, pair.requests(&name, number(index)));
            match task.who.as_str() {
                "publish-retry" => Box::new(retry),
                "gate" => Box::new(Gated(Arc::clone(&gate), retry)),
                other => panic!("no column is called {other:?}"),
            }
        })
        .collect()
}

/// The times of the entry and of the start of the release, in nanoseconds, and the thread's number.
type Visit = [u64; 3];

fn turn(task: &Task, contenders: &mut [Box<dyn Contender>], time: Duration) -> (Vec<Visit>, Value) {
    let (cpu, start) = (cpu_time(), Instant::now());
    let end = start + time;
    let visits: Vec<Visit> = std::thread::scope(|scope| {
        let threads: Vec<_> = contenders
            .iter_mut()
            .zip(0..)
            .map(|(contender, thread)| {
                scope.spawn(move || {
                    let mut visits = Vec::new();
                    while Instant::now() < end {
                        contender.cycle(&mut || {
                            let entered = nanos();
                            task.pause_inside();
                            visits.push([entered, nanos(), thread]);
                        });
                        pause(task.pause);
                    }
                    visits
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let answer = json!({
        "cycles": visits.len(), "contenders": task.threads,
        "seconds": start.elapsed().as_secs_f64(), "cpu": cpu_time() - cpu,
    });
    (visits, answer)
}

impl Contender for distlock::Mutex {
    fn cycle(&mut self, inside: &mut dyn FnMut()) {
        let guard = self.lock().expect("the store is there");
        inside();
        guard.unlock().expect("it is ours");
    }
}

/// The method of Redisson's clients: a client that finds the lock busy waits for the message of a
/// release and tries again. Each thread has a connection for requests and one for messages, and
/// stays subscribed.
struct PublishRetry {
    raw: Raw,
    messages: Raw,
    requests: Requests,
}

impl PublishRetry {
    fn new(port: u16, name: &str, requests: Requests) -> Self {
        let mut messages = Raw::connect(port);
        messages.call(&request(&[
            "SUBSCRIBE",
            &format!("redisson_lock__channel:{{{name}}}"),
        ]));
        Self {
            raw: Raw::connect(port),
            messages,
            requests,
        }
    }
}

impl Contender for PublishRetry {
    fn cycle(&mut self, inside: &mut dyn FnMut()) {
        // The attempt sees the effect of every release before it, so older messages are dropped.
        while self.messages.next_within(Duration::ZERO).is_some() {}
        while !is_granted(&self.raw.call(&self.requests.acquire)) {
            self.messages.next_within(LOOK_AGAIN);
        }
        inside();
        assert!(
            matches!(self.raw.call(&self.requests.release), Reply::Int(1..)),
            "it was ours"
        );
    }
}

/// [`PublishRetry`] with a local mutex, so that only one thread of a process contends at a time.
/// The threads of the process take turns.
struct Gated(Arc<Mutex<()>>, PublishRetry);

impl Contender for Gated {
    fn cycle(&mut self, inside: &mut dyn FnMut()) {
        let turn = self.0.lock();
        self.1.cycle(inside);
        MutexGuard::unlock_fair(turn);
    }
}
