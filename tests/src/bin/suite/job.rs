//! [`Job`]: one command with its own log; [`Outcome`]: its result.

use distlock_tests::lifeline::LifeLine;
use distlock_tests::time::let_pass;
use lock_core::{Clock, SystemClock};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// The folder of the logs, relative to the root of the workspace, in which the suite runs.
pub(crate) const LOGS: &str = "target/suite";

/// The longest time that a job may take, so that a job that hangs is killed. The whole default tier
/// takes less.
const BOUND: Duration = Duration::from_secs(40 * 60);

/// The pause between two checks whether a job has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The beginning of the log lines about counts and skipped tests, which the report shows.
const NOTE: &str = "noted: ";
const SKIPPED: &str = "skipped: ";

/// A command to be run, with its name in the report.
pub(crate) struct Job {
    pub(crate) name: String,
    words: Vec<String>,
    environment: Vec<(&'static str, String)>,
    has_tests: bool,
}

/// The priority of a job for the processors.
#[derive(Clone, Copy)]
pub(crate) enum Priority {
    Normal,
    /// A third of the normal weight. At the lowest priority a job might never end on a busy
    /// machine.
    Low,
}

/// The result of a [`Job`].
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) is_ok: bool,
    pub(crate) took: Duration,
    pub(crate) counts: Counts,
    /// The names of the ignored tests, with their modules.
    pub(crate) left_out: Vec<String>,
    /// The log lines that the report shows: what was skipped, and what was counted.
    pub(crate) notes: Vec<String>,
    log: PathBuf,
}

/// The numbers of tests by their results.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl Job {
    pub(crate) fn new(name: &str, words: &[&str]) -> Self {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        Self {
            name: name.to_owned(),
            words,
            environment: Vec::new(),
            has_tests: false,
        }
    }

    /// Makes a job of a Cargo command, whose arguments are separated by single spaces.
    pub(crate) fn cargo(name: &str, arguments: &str) -> Self {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        Self::new(name, &[&cargo]).args(&arguments.split(' ').collect::<Vec<_>>())
    }

    /// Sets another name for the report.
    pub(crate) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    pub(crate) fn args(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(|&word| word.to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Marks the command as one that runs tests: the job fails if no test ran.
    pub(crate) fn with_tests(mut self) -> Self {
        self.has_tests = true;
        self
    }

    /// Runs the command and returns its exit code; `None` if a signal ended the command.
    pub(crate) fn exit_code(self) -> Option<i32> {
        let mut command = Command::new(&self.words[0]);
        let status = command.args(&self.words[1..]).stdin(Stdio::null()).status();
        status
            .unwrap_or_else(|error| panic!("{:?} does not start: {error}", self.words))
            .code()
    }

    /// Runs the command with its output in its log, and kills it after [`BOUND`].
    pub(crate) fn run(self, priority: Priority) -> Outcome {
        fs::create_dir_all(LOGS).expect("the folder for logs can be made");
        let log = PathBuf::from(LOGS).join(self.name.replace(' ', "-") + ".log");
        let output = File::create(&log).expect("a log can be made");
        let errors = output.try_clone().expect("a file has another handle");
        let nice = match priority {
            Priority::Normal => &[][..],
            Priority::Low => &["nice", "-n", "5"],
        };
        let words: Vec<_> = nice
            .iter()
            .copied()
            .chain(self.words.iter().map(String::as_str))
            .collect();
        let begun = SystemClock.now();
        let mut process = Command::new(words[0])
            .args(&words[1..])
            .envs(self.environment)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{words:?} does not start: {error}"));
        let line = LifeLine::of(&process);
        let until = begun + BOUND;
        while !has_ended(&process) && SystemClock.now() < until {
            let_pass(LOOK_AGAIN);
        }
        let is_in_time = has_ended(&process);
        if !is_in_time {
            eprintln!(
                "{}: killed after {} minutes",
                self.name,
                BOUND.as_secs() / 60
            );
        }
        // Kill the group before its leader is reaped: later the number may be another group's.
        kill_group(&process);
        drop(line);
        let status = process.wait().expect("our own child can be waited for");
        let took = SystemClock.now().since(begun);
        let is_ok = is_in_time && status.success();
        let mut outcome = Outcome {
            name: self.name,
            is_ok,
            took,
            counts: Counts::default(),
            left_out: Vec::new(),
            notes: Vec::new(),
            log,
        };
        outcome.read_log();
        if self.has_tests && outcome.counts.is_empty() {
            eprintln!("{}: no test ran", outcome.name);
            outcome.is_ok = false;
        }
        let verdict = if outcome.is_ok { "ok" } else { "FAILED" };
        eprintln!("{:>7.1} s  {verdict}  {}", took.as_secs_f64(), outcome.name);
        // Printed at once, because a run that is cut off later prints no report.
        let lines = outcome.lines();
        let failed = lines.iter().filter(|line| line.ends_with(" ... FAILED"));
        failed.for_each(|line| eprintln!("           {line}"));
        outcome
    }
}

/// Returns whether the process has ended, without reaping it.
fn has_ended(process: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = waitid(WaitId::Pid(Pid::from_child(process)), options);
    ended.expect("our own child can be looked at").is_some()
}

impl Outcome {
    /// Returns the lines of the job's log.
    pub(crate) fn lines(&self) -> Vec<String> {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Returns the text that the report prints of a failed job: the messages of the failed tests,
    /// or else the end of the log.
    pub(crate) fn complaint(&self) -> String {
        let lines = self.lines();
        let failures = lines.iter().position(|line| line == "failures:");
        let from = failures.unwrap_or(lines.len().saturating_sub(60));
        let most = 300;
        let shown = lines[from..].iter().take(most).map(String::as_str);
        format!(
            "== {} ({})\n{}\n",
            self.name,
            self.log.display(),
            shown.collect::<Vec<_>>().join("\n")
        )
    }

    /// Reads the results of the tests, the names of the ignored tests, and the notes from the log.
    fn read_log(&mut self) {
        for line in self.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                let number = |what: &str| {
                    let part = result
                        .split([';', '.'])
                        .find(|part| part.trim().ends_with(what));
                    part.and_then(|part| part.split_whitespace().next()?.parse::<u64>().ok())
                };
                self.counts.passed += number(" passed").unwrap_or(0);
                self.counts.failed += number(" failed").unwrap_or(0);
                self.counts.ignored += number(" ignored").unwrap_or(0);
            } else if let Some(test) = line.strip_prefix("test ")
                && let Some((name, verdict)) = test.split_once(" ... ")
                && verdict.starts_with("ignored")
            {
                self.left_out.push(name.trim().to_owned());
            } else if line.starts_with(NOTE) || line.starts_with(SKIPPED) {
                self.notes.push(line);
            }
        }
    }
}

/// Kills all processes of a job's group.
fn kill_group(leader: &Child) {
    let _nothing_left = kill_process_group(Pid::from_child(leader), Signal::KILL);
}

/// Runs all these jobs one after the other, even if some fail. `priority` is called before each
/// job.
pub(crate) fn run_lane(jobs: Vec<Job>, priority: impl Fn() -> Priority) -> Vec<Outcome> {
    jobs.into_iter().map(|job| job.run(priority())).collect()
}

/// Runs the lanes concurrently, and the jobs of each lane one after the other.
pub(crate) fn run_beside(lanes: Vec<Vec<Job>>) -> Vec<Outcome> {
    thread::scope(|scope| {
        let run = |lane| run_lane(lane, || Priority::Normal);
        let lanes: Vec<_> = lanes
            .into_iter()
            .map(|lane| scope.spawn(move || run(lane)))
            .collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().expect("a job does not panic"))
            .collect()
    })
}
