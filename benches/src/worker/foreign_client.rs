//! Another library in another language, by the program that the interop suite has for it
//! (`tests/interop/peers`): this worker passes turns on to it, and looks at the processor time that
//! it takes.

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

/// For a JVM as services have it: the interop suite asks for one that starts soon, and this is what
/// wins over it. Its collector for one processor stays, as that is what the clients have here.
const JVM: &str = "-XX:TieredStopAtLevel=4 -Xmx512m";

/// For so long a JVM does the work before anything is measured: at first it interprets what it
/// compiles later.
const WARM: Duration = Duration::from_secs(5);

struct Running {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    lease: u64,
    /// Where its threads write down when they had the lock, if they are to.
    logs: Option<TempDir>,
}

/// So many lines are given before an answer is read.
const AT_ONCE: usize = 1000;

pub(super) fn run(task: &Task, program: &Path) {
    let mut running = Running::start(task, program);
    if task.work == "hold" {
        return running.hold(task);
    }
    if task.work == "nested" {
        // The cycles are on the same thread, inside this one.
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
            // What is wrong is seen in its answers; a JVM says there which options it picked up.
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

    /// How its program is told the kind of lock.
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

    /// Has its threads take all locks, and does nothing else: what its watchdog costs.
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
        // What renews them has run once when it counts.
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

    /// What one of its threads is to do.
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

    /// The number in the next answer, which must be a good one.
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

    /// The processor time of its threads, in seconds. Those that have ended are not in it.
    fn cpu_time(&self) -> f64 {
        let text = self
            .threads()
            .filter_map(|it| std::fs::read_to_string(it.join("schedstat")).ok());
        let nanos = text.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok());
        nanos.sum::<u64>() as f64 / 1e9
    }

    /// The same with those that have ended, of which a JVM that has little to do has some; but
    /// counted in hundredths.
    fn whole_cpu_time(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()));
        let stat = stat.expect("it runs");
        // Behind the name, which may have spaces: the 14th and 15th field are those of the user and
        // of the system.
        let (_, fields) = stat.rsplit_once(") ").expect("its name is in brackets");
        let ticks = fields
            .split(' ')
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u64>());
        ticks.map(|ticks| ticks.expect("a number")).sum::<u64>() as f64 / 100.0
    }

    /// The folders in which its threads stand.
    fn threads(&self) -> impl Iterator<Item = PathBuf> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id()));
        tasks
            .expect("it runs")
            .filter_map(|task| Some(task.ok()?.path()))
    }
}

impl Drop for Running {
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
