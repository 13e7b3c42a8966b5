//! The peers, as workers of the benchmarks: `rslock` and `rlock`, both asynchronous, on a tokio runtime of two threads.
//! They speak what `benches/src/worker/mod.rs` describes.

use rlock::async_lock::RLock;
use rslock::LockManager;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// The lease that both ask for.
const LEASE: Duration = Duration::from_secs(30);

#[derive(Clone)]
enum Peer {
    Rslock(Arc<LockManager>),
    Rlock(RLock),
}

impl Peer {
    async fn connect(name: &str, port: u16) -> Self {
        let url = format!("redis://127.0.0.1:{port}");
        match name {
            "rslock" => Self::Rslock(Arc::new(LockManager::new(vec![url]))),
            "rlock" => Self::Rlock(RLock::new(url).await.expect("the server is there")),
            other => panic!("no peer is called {other:?}"),
        }
    }

    /// Locks, however often it takes, calls `inside`, and unlocks.
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

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = arguments.iter().position(|word| *word == format!("--{name}"))?;
        arguments.get(at + 1)?.parse::<usize>().ok()
    };
    let [_worker, work, who] = &arguments[..3] else { panic!("worker WORK WHO") };
    let port = u16::try_from(option("port").expect("--port")).expect("a port");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("two threads");
    let peer = runtime.block_on(Peer::connect(who, port));
    let tasks = option("threads").unwrap_or(1);
    let log = (work == "contend").then(|| tempfile::NamedTempFile::new().expect("a file"));
    // Nobody else's: the other columns keep theirs while they wait for their turn.
    let name = |task: usize| match log {
        Some(_) => format!("contended:{who}"),
        None => format!("own:{:07}:{task:06}", std::process::id()),
    };
    let names: Vec<_> = (0..tasks).map(name).collect();
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the parent writes text");
        let millis = line.strip_prefix("run ").and_then(|text| text.parse().ok());
        let time = Duration::from_millis(millis.expect("`run MILLISECONDS`"));
        let (visits, mut answer) = turn(&runtime, &peer, &names, log.is_some(), time);
        if let Some(log) = &log {
            let bytes: Vec<u8> = visits.iter().flatten().flat_map(|n| n.to_le_bytes()).collect();
            std::fs::write(log.path(), bytes).expect("there is room for a log");
            answer["log"] = json!(log.path());
        }
        say(&answer.to_string());
    }
}

/// Came in, began to leave, task.
type Visit = [u64; 3];

fn turn(
    runtime: &Runtime,
    peer: &Peer,
    names: &[String],
    one_lock: bool,
    time: Duration,
) -> (Vec<Visit>, Value) {
    let (cpu, start) = (clock(ClockId::ProcessCPUTime), Instant::now());
    let mut set = JoinSet::new();
    for (task, name) in names.iter().enumerate() {
        let (peer, name) = (peer.clone(), name.clone());
        let cycles = async move {
            let (mut visits, mut count) = (Vec::new(), 0_u64);
            while start.elapsed() < time {
                let inside = || {
                    if one_lock {
                        let entered = clock(ClockId::Monotonic);
                        visits.push([entered, clock(ClockId::Monotonic), task as u64]);
                    }
                };
                peer.cycle(&name, inside).await;
                count += 1;
            }
            (visits, count)
        };
        set.spawn_on(cycles, runtime.handle());
    }
    let all = runtime.block_on(set.join_all());
    let cycles: u64 = all.iter().map(|(_, count)| count).sum();
    let cpu = (clock(ClockId::ProcessCPUTime) - cpu) as f64 / 1e9;
    let answer = json!({ "contenders": names.len(), "cycles": cycles, "seconds": start.elapsed().as_secs_f64(), "cpu": cpu });
    (all.into_iter().flat_map(|(visits, _)| visits).collect(), answer)
}

fn clock(clock: ClockId) -> u64 {
    let time = Duration::try_from(clock_gettime(clock)).expect("after the start");
    u64::try_from(time.as_nanos()).expect("five hundred years")
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the parent reads");
}
