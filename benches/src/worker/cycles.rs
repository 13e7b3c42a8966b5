//! A workload in which threads lock and unlock without waiting for each other: each has its own
//! lock, or they share a read lock or a semaphore.

use super::{Kind, PERMITS, Task, cpu_time, serve};
use crate::learn::{Pair, Requests, is_granted, url};
use crate::raw::{Raw, Reply};
use distlock::{Client, DistLock, Error};
use serde_json::{Value, json};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A unit of work: `step` does it, and returns the number of cycles that it contains.
trait Step: Send {
    fn step(&mut self) -> u64;
}

pub(super) fn run(task: &Task) {
    let mut steps = steps(task);
    if let Some(cycles) = task.cycles {
        for _ in 0..cycles {
            steps[0].step();
        }
        return;
    }
    serve(|time| turn(&mut steps, time));
}

fn steps(task: &Task) -> Vec<Box<dyn Step>> {
    let each = |make: &dyn Fn(usize) -> Box<dyn Step>| (0..task.threads).map(make).collect();
    let pair = || task.learn();
    match task.who.as_str() {
        "ours" | "ours-drop" => ours(task, &url(task.port)),
        // Without fencing tokens, as other libraries: one key, and no counter.
        "ours-bare" | "ours-bare-drop" => {
            ours(task, &format!("{}?format=token&tokens=off", url(task.port)))
        }
        "memory" => ours(task, "memory://"),
        "raw" => {
            let pair = pair();
            each(&|index| {
                Box::new(Plain(
                    Raw::connect(task.port),
                    pair.requests(&own(index), index),
                ))
            })
        }
        "raw-async" => {
            let pair = pair();
            each(&|index| {
                let requests = pair.requests(&own(index), index);
                Box::new(Unawaited {
                    raw: Raw::connect(task.port),
                    requests,
                    owed: false,
                })
            })
        }
        "pipeline" => vec![Box::new(Pipeline::new(task, &pair()))],
        other => panic!("no column is called {other:?}"),
    }
}

fn turn(steps: &mut [Box<dyn Step>], time: Duration) -> Value {
    let barrier = Barrier::new(steps.len() + 1);
    let cpu = cpu_time();
    std::thread::scope(|scope| {
        let threads: Vec<_> = steps
            .iter_mut()
            .map(|step| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    let mut cycles = 0;
                    while start.elapsed() < time {
                        cycles += step.step();
                    }
                    (cycles, start, Instant::now())
                })
            })
            .collect();
        barrier.wait();
        let turns: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        let cycles: u64 = turns.iter().map(|&(cycles, ..)| cycles).sum();
        // From the start of the first thread to the end of the last one. The barrier may wake this
        // thread last, so a start time taken here would miss cycles that are already done.
        let start = turns
            .iter()
            .map(|&(_, start, _)| start)
            .min()
            .expect("one thread at least");
        let end = turns
            .iter()
            .map(|&(.., end)| end)
            .max()
            .expect("one thread at least");
        json!({ "cycles": cycles, "seconds": (end - start).as_secs_f64(), "cpu": cpu_time() - cpu })
    })
}

/// Returns the name of a thread's own lock. It contains the process ID, because the worker of
/// another column may hold its locks between its turns.
pub(super) fn own(index: usize) -> String {
    format!("own:{:07}:{index:06}", std::process::id())
}

/// A cycle of a lock of this library.
struct Ours<F>(F);

impl<F: FnMut() -> Result<(), Error> + Send> Step for Ours<F> {
    fn step(&mut self) -> u64 {
        (self.0)().expect("the store is there, and the lock ours");
        1
    }
}

fn ours(task: &Task, url: &str) -> Vec<Box<dyn Step>> {
    let client = distlock::connect(url).expect("a URL of ours");
    (0..task.threads)
        .map(|index| cycle(&client, task, index).expect("a name"))
        .collect()
}

fn cycle(client: &Client, task: &Task, index: usize) -> Result<Box<dyn Step>, Error> {
    let name = own(index);
    Ok(match task.kind {
        Kind::Mutex if task.who.ends_with("-drop") => {
            let lock = client.mutex(name)?;
            Box::new(Ours(move || lock.lock().map(drop)))
        }
        Kind::Mutex => unlocked(client.mutex(name)?),
        Kind::Fair => unlocked(client.fair_mutex(name)?),
        Kind::Read => unlocked(client.rw_lock("readers")?.read().clone()),
        Kind::Write => unlocked(client.rw_lock(name)?.write().clone()),
        Kind::Permits => {
            let permits = client.semaphore("permits", PERMITS)?;
            Box::new(Ours(move || permits.acquire()?.unlock()))
        }
    })
}

fn unlocked(lock: impl DistLock + 'static) -> Box<dyn Step> {
    Box::new(Ours(move || lock.lock()?.unlock()))
}

struct Plain(Raw, Requests);

impl Step for Plain {
    fn step(&mut self) -> u64 {
        assert!(
            is_granted(&self.0.call(&self.1.acquire)),
            "no other client has it"
        );
        assert!(
            matches!(self.0.call(&self.1.release), Reply::Int(1..)),
            "it was ours"
        );
        1
    }
}

/// A raw socket that reads the reply to a release together with the reply to the next acquire.
struct Unawaited {
    raw: Raw,
    requests: Requests,
    owed: bool,
}

impl Step for Unawaited {
    fn step(&mut self) -> u64 {
        self.raw.send(&self.requests.acquire);
        if self.owed {
            self.raw.read().expect("the release is answered");
        }
        assert!(
            is_granted(&self.raw.read().expect("an answer")),
            "no other client has it"
        );
        self.raw.send(&self.requests.release);
        self.owed = true;
        1
    }
}

/// One connection with as many pending requests as there would be threads. While the server
/// executes one half of the requests, the replies to the other half are read. This shows the
/// server's limit for that number of callers.
struct Pipeline {
    raw: Raw,
    /// For each half, all acquires and all releases.
    halves: [Requests; 2],
    half: usize,
}

impl Pipeline {
    fn new(task: &Task, pair: &Pair) -> Self {
        let half = (task.threads / 2).max(1);
        let halves = [0, half].map(|first| {
            let all: Vec<_> = (first..first + half)
                .map(|i| pair.requests(&own(i), i))
                .collect();
            Requests {
                acquire: all.iter().flat_map(|one| one.acquire.clone()).collect(),
                release: all.iter().flat_map(|one| one.release.clone()).collect(),
            }
        });
        let mut raw = Raw::connect(task.port);
        halves.iter().for_each(|half| raw.send(&half.acquire));
        Self { raw, halves, half }
    }
}

impl Step for Pipeline {
    fn step(&mut self) -> u64 {
        for releasing in [true, false] {
            for requests in &self.halves {
                for _ in 0..self.half {
                    self.raw.read().expect("an answer");
                }
                self.raw.send(if releasing {
                    &requests.release
                } else {
                    &requests.acquire
                });
            }
        }
        2 * self.half as u64
    }
}
