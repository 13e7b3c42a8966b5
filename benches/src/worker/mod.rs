//! A worker: this program as a child process, which does the work of one column of one table. A
//! worker prints `ready`, and then answers each line `run MILLISECONDS` and each line `look` with
//! one line of JSON.
//!
//! Every column has a process of its own, so that its memory and processor time can be read, and
//! many short turns of all columns can alternate.

mod contend;
mod crowd;
mod cycles;
mod direct_grant;
pub(crate) mod faults;
mod foreign_client;
mod hold;
mod lean;
mod nested;
mod redisson;
mod scripts;
mod waiting;

use crate::learn::{Pair, url};
use distlock::Client;
use distlock::config::LockOrder;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

/// A kind of lock.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Mutex,
    /// The read lock of one read-write lock, which all threads share.
    Read,
    /// The write lock of a read-write lock, one for each thread.
    Write,
    /// Permits of one semaphore, which has enough of them for all threads.
    Permits,
    Fair,
}

/// The number of permits of the semaphore.
pub(crate) const PERMITS: u32 = 100;

/// What a worker is to do. Each work uses only some of the options.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Task {
    /// The work, as in `cycles`.
    pub(crate) work: String,
    /// The column that does the work, as in `ours`.
    pub(crate) who: String,
    /// The server's port.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// How many threads.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// How many locks.
    #[arg(long, default_value_t = 1)]
    pub(crate) locks: usize,
    /// The name of the one lock that all threads want. By default each column has its own.
    #[arg(long)]
    pub(crate) lock: Option<String>,
    /// How long a lock is held, in microseconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) hold: u64,
    /// If longer than `hold`: each hold is of a random length between these two.
    #[arg(long, default_value_t = 0)]
    pub(crate) hold_most: u64,
    /// How long a thread pauses after each cycle, in microseconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) pause: u64,
    /// The lease of the watchdog, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    pub(crate) lease: u64,
    /// The kind of lock.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) kind: Kind,
    /// Do that many cycles and end, for counting instructions.
    #[arg(long)]
    pub(crate) cycles: Option<u64>,
    /// A directory that all processes of a column share.
    #[arg(long)]
    pub(crate) shared: Option<PathBuf>,
    /// The program in another language that does the work.
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
}

impl Task {
    /// Returns the requests that the library sends for this lease.
    fn learn(&self) -> Pair {
        Pair::learn(self.port, Duration::from_millis(self.lease))
    }

    /// Returns the name of the one lock.
    fn lock(&self) -> String {
        let own = || format!("contended:{}", self.who);
        self.lock.clone().unwrap_or_else(own)
    }

    /// Returns a client of the library, with the fair order if the column's name ends with `-fair`.
    fn client(&self) -> Client {
        let order = if self.who.ends_with("-fair") {
            LockOrder::Fair
        } else {
            LockOrder::Any
        };
        let lease = Duration::from_millis(self.lease);
        let builder = distlock::builder()
            .url(&url(self.port))
            .expect("a URL of ours");
        builder
            .configure(|it| it.with_order(order).with_watchdog(lease))
            .connect()
            .expect("the server is there")
    }

    /// Waits as long as a hold lasts.
    fn pause_inside(&self) {
        pause(if self.hold_most > self.hold {
            fastrand::u64(self.hold..=self.hold_most)
        } else {
            self.hold
        });
    }
}

/// Runs the work until the parent closes the pipe.
pub(crate) fn run(task: &Task) {
    if let Some(program) = &task.program {
        return foreign_client::run(task, program);
    }
    match task.work.as_str() {
        "cycles" => cycles::run(task),
        "contend" => contend::run(task),
        "nested" => nested::run(task),
        "hold" => hold::run(task),
        "scripts" => scripts::run(task),
        "crowd" => crowd::run(task),
        "waiting" => waiting::run(task),
        "faults" => faults::run(task),
        other => panic!("no work is called {other:?}"),
    }
}

/// Answers each `run` with the result of `turn`, until the parent closes the pipe.
fn serve(turn: impl FnMut(Duration) -> Value) {
    serve_and_look(turn, || json!({}));
}

/// Answers each `run` with the result of `turn`, and each `look` with the result of `look`, until
/// the parent closes the pipe. `look` returns the figures that cannot be read during a measurement.
fn serve_and_look(mut turn: impl FnMut(Duration) -> Value, look: impl Fn() -> Value) {
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the parent writes text");
        let millis = line.strip_prefix("run ").and_then(|text| text.parse().ok());
        let answer = match millis {
            Some(millis) => turn(Duration::from_millis(millis)),
            None if line == "look" => look(),
            None => panic!("neither `run MILLISECONDS` nor `look`: {line:?}"),
        };
        say(&answer.to_string());
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("the parent reads");
}

/// Returns the processor time of this process, in seconds.
fn cpu_time() -> f64 {
    seconds_of(ClockId::ProcessCPUTime)
}

fn seconds_of(clock: ClockId) -> f64 {
    Duration::try_from(clock_gettime(clock))
        .expect("after the start")
        .as_secs_f64()
}

/// Returns the time in nanoseconds, on a clock that all processes of a machine share.
pub(crate) fn nanos() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).expect("after the start");
    u64::try_from(now.as_nanos()).expect("five hundred years")
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("it is there");
    line.split_whitespace()
        .nth(1)
        .and_then(|text| text.parse::<u64>().ok())
        .expect("in kB")
        * 1024
}

/// Returns the number of threads of this process.
fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task")
        .expect("Linux has it")
        .count()
}

/// Returns the number of threads whose name begins with `head`. The system keeps fifteen letters of
/// a name.
fn threads_called(head: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    // A thread that has ended meanwhile has no name any more.
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks
        .filter_map(|task| name(task.ok()?))
        .filter(|name| name.starts_with(head))
        .count()
}

fn pause(micros: u64) {
    if micros > 0 {
        std::thread::sleep(Duration::from_micros(micros));
    }
}
