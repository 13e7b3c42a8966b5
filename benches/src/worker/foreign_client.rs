//! A worker for a library of another language: it passes turns on to the program that the interop
//! suite has for the library (`tests/interop/peers`), and reads that program's processor time.

use super::cycles::own;
use super::hold::{lost, name as held};
use super::{Kind, PERMITS, Task, serve, serve_and_look};
use crate::learn::url;
use crate::peers::ForeignClient;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The options of a JVM as in a service. They override those of the interop suite, with which a JVM
/// starts fast. The suite's garbage collector for one processor stays: on a machine with two, the
/// clients have one processor.
const JVM: &str = "-XX:TieredStopAtLevel=4 -Xmx512m";

/// The time for which a JVM works before the measurement, because it first interprets the code that
/// it compiles later.
const WARM: Duration = Duration::from_secs(5);

struct Running {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    lease: u64,
    /// The directory in which the program's threads record their visits; `None` if no visits are
    /// recorded.
    logs: Option<TempDir>,
}

/// The number of lines that are sent before their answers are read.
const AT_ONCE: usize = 1000;

pub(super) fn run(task: &Task, program: &Path) {
    let mut running = Running::start(task, program);
    if task.work == "hold" {
        return running.hold(task);
    }
    if task.work == "nested" {
        // The cycles run on the same thread, nested in this hold.
        let line = format!("0 lock {} {}", own(0), running.lease);
        running.tell(&line);
        running.done(task);
    }
    if task.who == "redisson" {
        running.turn(task, WARM);
    }
    serve(|time| running.turn(task, time));
}

impl Running {
    fn start(task: &Task, program: &Path) -> Self {
        let library = ForeignClient::called(&task.who);
        let mut process = Command::new(program)
            .arg(url(task.port))
            .args(library.arguments)
            .args(Self::kind(task))
            .args((task.work == "hold").then(|| format!("watchdog={}", task.lease)))
            .env("_JAVA_OPTIONS", JVM)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Errors are in the answers. A JVM writes to standard error which options it picked up.
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let input = process.stdin.take().expect("it is piped");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let logs = (task.work == "contend").then(|| TempDir::new().expect("a folder of our own"));
        let mut running = Self {
            process,
            input,
            output,
            lease: library.lease,
            logs,
        };
        assert_eq!(
            running.line(),
            library.says(),
            "{} is another one",
            program.display()
        );
        if task.kind == Kind::Permits {
            running.tell(&format!("0 limit permits {PERMITS}"));
            running.line();
        }
        running
    }

    /// Returns the program's argument for the kind of lock.
    fn kind(task: &Task) -> Option<&'static str> {
        match task.kind {
            Kind::Mutex => None,
            Kind::Read | Kind::Write => Some("kind=read-write"),
            Kind::Permits => Some("kind=permits"),
            Kind::Fair => Some("kind=fair"),
        }
    }

    fn turn(&mut self, task: &Task, time: Duration) -> Value {
        let (cpu, start) = (self.cpu_time(), Instant::now());
        for thread in 0..task.threads {
            let line = self.order(task, thread, time);
            self.tell(&line);
        }
        let mut cycles = 0;
        for _ in 0..task.threads {
            cycles += self.done(task);
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut answer = json!({
            "cycles": cycles, "contenders": task.threads, "seconds": seconds,
            "cpu": self.cpu_time() - cpu,
        });
        if let Some(logs) = &self.logs {
            let log = logs.path().join("all");
            std::fs::write(&log, visits(logs.path(), task.threads)).expect("there is room");
            answer["log"] = json!(log);
        }
        answer
    }

    /// Locks all locks on the program's threads, and then only waits, to measure what the library's
    /// watchdog costs.
    fn hold(&mut self, task: &Task) {
        let lines: Vec<_> = (0..task.locks)
            .map(|index| format!("{} lock {} 0", index % task.threads, held(index)))
            .collect();
        for some in lines.chunks(AT_ONCE) {
            some.iter().for_each(|line| self.tell(line));
            for _ in some {
                self.done(task);
            }
        }
        // The measurement begins after each lock was renewed once.
        std::thread::sleep(Duration::from_millis(task.lease / 3) + Duration::from_secs(1));
        let turn = |time| {
            let (cpu, start) = (self.whole_cpu_time(), Instant::now());
            std::thread::sleep(time);
            let threads = self.threads().count();
            json!({
                "cycles": 1, "seconds": start.elapsed().as_secs_f64(),
                "cpu": self.whole_cpu_time() - cpu,
                "threads": threads, "turn": time.as_secs_f64(),
            })
        };
        serve_and_look(turn, || json!({ "lost": lost(task) }));
    }

    /// Returns the line that describes the work of one of the program's threads for a turn.
    fn order(&self, task: &Task, thread: usize, time: Duration) -> String {
        let (name, file) = match &self.logs {
            Some(logs) => (
                format!("contended:{}", task.who),
                logs.path().join(thread.to_string()),
            ),
            None => (own(thread), "-".into()),
        };
        let name = match task.kind {
            Kind::Mutex | Kind::Fair => name,
            Kind::Read => "read/readers".to_owned(),
            Kind::Write => format!("write/{name}"),
            Kind::Permits => "permits".to_owned(),
        };
        let (millis, file) = (time.as_millis(), file.display());
        let Task { hold, pause, .. } = task;
        format!(
            "{thread} cycles {name} {millis} {hold} {pause} {} {file}",
            self.lease
        )
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }

    /// Returns the number in the next answer. Panics if the answer reports an error.
    fn done(&mut self, task: &Task) -> u64 {
        let answer = self.line();
        let number = answer
            .split_once(" ok ")
            .and_then(|(_, number)| number.parse().ok());
        number.unwrap_or_else(|| panic!("{} says {answer:?}", task.who))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes text");
        line.trim_end().to_owned()
    }

    /// Returns the processor time of the program's threads, in seconds, without threads that have
    /// ended.
    fn cpu_time(&self) -> f64 {
        let text = self
            .threads()
            .filter_map(|it| std::fs::read_to_string(it.join("schedstat")).ok());
        let nanos = text.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok());
        nanos.sum::<u64>() as f64 / 1e9
    }

    /// Returns the processor time of the program, in seconds, including that of threads that have
    /// ended: an idle JVM ends some. The system counts it only in hundredths of a second.
    fn whole_cpu_time(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()));
        let stat = stat.expect("it runs");
        // After the name, which may contain spaces: the 14th and 15th fields are the times of the
        // user and of the system.
        let (_, fields) = stat.rsplit_once(") ").expect("its name is in brackets");
        let ticks = fields
            .split(' ')
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u64>());
        ticks.map(|ticks| ticks.expect("a number")).sum::<u64>() as f64 / 100.0
    }

    /// Returns the directories of the program's threads under `/proc`.
    fn threads(&self) -> impl Iterator<Item = PathBuf> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id()));
        tasks
            .expect("it runs")
            .filter_map(|task| Some(task.ok()?.path()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program would also end when its input is closed, but perhaps not soon.
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Returns the visits of all threads in the parent's format: entry, start of the release, thread.
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
