//! Another library in another language, by the program that the interop suite has for it (`tests/interop/peers`): this
//! worker passes turns on to it, and looks at the processor time that it takes.

use super::{Task, serve};
use crate::learn::url;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What it is started with, and the lease that it asks for: none where its watchdog sees to that, as ours does.
fn settings(who: &str) -> (&'static [&'static str], u64) {
    match who {
        "redisson" => (&["usual=yes"], 0),
        "redis-py" => (&["kind=redis-py"], 30_000),
        "redlock" => (&["kind=redlock"], 30_000),
        "redsync" => (&[], 30_000),
        other => panic!("no neighbour is called {other:?}"),
    }
}

/// For a JVM as services have it: the interop suite asks for one that starts soon, and this is what wins over it. Its
/// collector for one processor stays, as that is what the clients have here.
const JVM: &str = "-XX:TieredStopAtLevel=4 -Xmx512m";

/// For so long a JVM does the work before anything is measured: at first it interprets what it compiles later.
const WARM: Duration = Duration::from_secs(5);

struct Neighbour {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    lease: u64,
    /// Where its threads write down when they had the lock, if they are to.
    logs: Option<TempDir>,
}

pub(super) fn run(task: &Task, program: &Path) {
    let mut neighbour = Neighbour::start(task, program);
    if task.who == "redisson" {
        neighbour.turn(task, WARM);
    }
    serve(|time| neighbour.turn(task, time));
}

impl Neighbour {
    fn start(task: &Task, program: &Path) -> Self {
        let (arguments, lease) = settings(&task.who);
        let mut process = Command::new(program)
            .arg(url(task.port))
            .args(arguments)
            .env("_JAVA_OPTIONS", JVM)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What is wrong is seen in its answers; a JVM says there which options it picked up.
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let input = process.stdin.take().expect("it is piped");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let logs = (task.work == "contend").then(|| TempDir::new().expect("a folder of our own"));
        let mut neighbour = Self { process, input, output, lease, logs };
        let says = neighbour.line();
        assert!(says.starts_with("ready "), "{} says {says:?}", program.display());
        neighbour
    }

    fn turn(&mut self, task: &Task, time: Duration) -> Value {
        let (cpu, start) = (self.cpu_time(), Instant::now());
        for thread in 0..task.threads {
            let line = self.order(task, thread, time);
            writeln!(self.input, "{line}").expect("it reads");
        }
        let mut cycles = 0;
        for _ in 0..task.threads {
            let answer = self.line();
            let done = answer.split_once(" ok ").and_then(|(_, times)| times.parse::<u64>().ok());
            cycles += done.unwrap_or_else(|| panic!("{} says {answer:?}", task.who));
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut answer = json!({
            "cycles": cycles, "contenders": task.threads, "seconds": seconds, "cpu": self.cpu_time() - cpu,
        });
        if let Some(logs) = &self.logs {
            let log = logs.path().join("all");
            std::fs::write(&log, visits(logs.path(), task.threads)).expect("there is room");
            answer["log"] = json!(log);
        }
        answer
    }

    /// What one of its threads is to do.
    fn order(&self, task: &Task, thread: usize, time: Duration) -> String {
        let (name, file) = match &self.logs {
            Some(logs) => (format!("contended:{}", task.who), logs.path().join(thread.to_string())),
            None => (format!("own:{:07}:{thread:06}", std::process::id()), "-".into()),
        };
        let (millis, file) = (time.as_millis(), file.display());
        let Task { hold, pause, .. } = task;
        format!("{thread} cycles {name} {millis} {hold} {pause} {} {file}", self.lease)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes text");
        line.trim_end().to_owned()
    }

    /// The processor time of its threads, in seconds. Those that have ended are not in it.
    fn cpu_time(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id()));
        let tasks = tasks.expect("it runs").filter_map(Result::ok);
        let text =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
        let nanos = text.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok());
        nanos.sum::<u64>() as f64 / 1e9
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // It ends with its input, too; but then it need not be waited for.
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// What all threads have noted, as the parent reads it: came in, began to leave, thread.
fn visits(folder: &Path, threads: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for thread in 0..threads {
        let noted = std::fs::read(folder.join(thread.to_string())).expect("it wrote it");
        for visit in noted.chunks_exact(16) {
            all.extend_from_slice(visit);
            all.extend_from_slice(&(thread as u64).to_le_bytes());
        }
    }
    all
}
