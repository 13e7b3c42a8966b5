//! Workers of the benchmarks for the other Rust crates: `rslock` and `rlock`, both asynchronous, on
//! a tokio runtime of two threads; and `rlock-sync`, the blocking interface of rlock. They speak
//! the protocol that `benches/src/worker/mod.rs` describes.

#![allow(clippy::disallowed_methods, reason = "a stopwatch needs no clock that can be set by hand")]

use rlock::{async_lock, sync_lock};
use rslock::LockManager;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// The lease of rslock's locks. Locks of rlock have that crate's default lease, which it renews.
const LEASE: Duration = Duration::from_secs(30);

enum Peer {
    Tasks(Runtime, Asynchronous),
    Threads(sync_lock::RLock),
}

#[derive(Clone)]
enum Asynchronous {
    Rslock(Arc<LockManager>),
    Rlock(async_lock::RLock),
}

impl Peer {
    fn connect(name: &str, port: u16, threads: usize) -> Self {
        let url = format!("redis://127.0.0.1:{port}");
        if name == "rlock-sync" {
            // One idle connection for each thread. With the default of 8, more threads than that
            // would open a new connection for almost every command.
            let pool = sync_lock::PoolOptions::new().max_idle_connections(threads);
            let client = sync_lock::RLock::new_with_pool_options(url, pool);
            return Self::Threads(client.expect("the server is there"));
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("two threads");
        let library = match name {
            "rslock" => Asynchronous::Rslock(Arc::new(LockManager::new(vec![url]))),
            "rlock" => {
                let client = runtime.block_on(async_lock::RLock::new(url));
                Asynchronous::Rlock(client.expect("the server is there"))
            }
            other => panic!("no peer is called {other:?}"),
        };
        Self::Tasks(runtime, library)
    }

    /// Locks and unlocks each name again and again during `time`, in a task or a thread of its own.
    fn turn(&self, names: &[String], one_lock: bool, time: Duration) -> Vec<Done> {
        let end = Instant::now() + time;
        let fresh =
            |index| Done { index: one_lock.then_some(index), visits: Vec::new(), cycles: 0 };
        match self {
            Self::Tasks(runtime, library) => {
                let mut set = JoinSet::new();
                for (task, name) in names.iter().enumerate() {
                    let (library, name, mut done) = (library.clone(), name.clone(), fresh(task));
                    let cycles = async move {
                        while Instant::now() < end {
                            library.cycle(&name, || done.visit()).await;
                        }
                        done
                    };
                    set.spawn_on(cycles, runtime.handle());
                }
                runtime.block_on(set.join_all())
            }
            Self::Threads(client) => thread::scope(|scope| {
                let spawn = |(thread, name): (usize, &String)| {
                    let (name, mut done) = (name.clone(), fresh(thread));
                    scope.spawn(move || {
                        while Instant::now() < end {
                            let mut guard =
                                client.acquire_mutex(&name).expect("the server is there");
                            done.visit();
                            guard.release().expect("it is ours");
                        }
                        done
                    })
                };
                let threads: Vec<_> = names.iter().enumerate().map(spawn).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            }),
        }
    }
}

impl Asynchronous {
    /// Locks, calls `inside`, and unlocks. With rslock, a failed attempt is repeated until the lock
    /// is granted.
    async fn cycle(&self, name: &str, inside: impl FnOnce()) {
        match self {
            Self::Rslock(manager) => {
                let lock = loop {
                    if let Ok(lock) = manager.lock(name, LEASE).await {
                        break lock;
                    }
                };
                inside();
                manager.unlock(&lock).await;
            }
            Self::Rlock(client) => {
                let mut guard = client.acquire_mutex(name).await.expect("the server is there");
                inside();
                guard.release().await.expect("it is ours");
            }
        }
    }
}

/// What a task or a thread did in a turn.
struct Done {
    /// The number of the task or thread; `None` if its visits are not recorded.
    index: Option<usize>,
    visits: Vec<Visit>,
    cycles: u64,
}

/// The times of the entry and of the start of the release, in nanoseconds, and the number of the
/// task or thread.
type Visit = [u64; 3];

impl Done {
    /// Counts a cycle, and records the visit where visits are recorded. Called with the lock held.
    fn visit(&mut self) {
        self.cycles += 1;
        if let Some(index) = self.index {
            let entered = clock(ClockId::Monotonic);
            self.visits.push([entered, clock(ClockId::Monotonic), index as u64]);
        }
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = arguments.iter().position(|word| *word == format!("--{name}"))?;
        arguments.get(at + 1)?.parse::<usize>().ok()
    };
    let [_worker, work, who] = &arguments[..3] else { panic!("worker WORK WHO") };
    let port = u16::try_from(option("port").expect("--port")).expect("a port");
    let threads = option("threads").unwrap_or(1);
    let peer = Peer::connect(who, port, threads);
    let log = (work == "contend").then(|| tempfile::NamedTempFile::new().expect("a file"));
    // No other column uses these names: the workers of all columns exist at the same time, and only
    // take turns.
    let name = |index: usize| match log {
        Some(_) => format!("contended:{who}"),
        None => format!("own:{:07}:{index:06}", std::process::id()),
    };
    let names: Vec<_> = (0..threads).map(name).collect();
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the parent writes text");
        let millis = line.strip_prefix("run ").and_then(|text| text.parse().ok());
        let time = Duration::from_millis(millis.expect("`run MILLISECONDS`"));
        let (cpu, start) = (clock(ClockId::ProcessCPUTime), Instant::now());
        let all = peer.turn(&names, log.is_some(), time);
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), clock(ClockId::ProcessCPUTime) - cpu);
        let cycles: u64 = all.iter().map(|done| done.cycles).sum();
        let mut answer: Value = json!({
            "contenders": threads, "cycles": cycles, "seconds": seconds, "cpu": cpu as f64 / 1e9,
        });
        if let Some(log) = &log {
            let visits = all.iter().flat_map(|done| &done.visits).flatten();
            let bytes: Vec<u8> = visits.flat_map(|number| number.to_le_bytes()).collect();
            std::fs::write(log.path(), bytes).expect("there is room for a log");
            answer["log"] = json!(log.path());
        }
        say(&answer.to_string());
    }
}

fn clock(clock: ClockId) -> u64 {
    let time = Duration::try_from(clock_gettime(clock)).expect("after the start");
    u64::try_from(time.as_nanos()).expect("five hundred years")
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the parent reads");
}
