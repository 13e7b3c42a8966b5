//! [`Job`]: one command with a log of its own, and what came of it.

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

/// Where the logs are. Tests run in the root of the workspace.
pub(crate) const LOGS: &str = "target/suite";

/// The longest that a job may take. The whole default tier takes less.
const BOUND: Duration = Duration::from_secs(40 * 60);

/// How often it is looked whether a job has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How the lines of a log begin that the report shows.
const NOTE: &str = "noted: ";
const SKIPPED: &str = "skipped: ";

/// A command to be run.
pub(crate) struct Job {
    pub(crate) name: String,
    words: Vec<String>,
    environment: Vec<(&'static str, String)>,
    has_tests: bool,
}

/// How a job shares the processors with the others.
#[derive(Clone, Copy)]
pub(crate) enum Priority {
    Normal,
    /// A third of the weight. With the least, a busy machine would never let it end.
    Low,
}

/// What came of a [`Job`].
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) is_ok: bool,
    pub(crate) took: Duration,
    pub(crate) counts: Counts,
    /// The tests that were ignored, with their paths.
    pub(crate) left_out: Vec<String>,
    /// Lines of its log that the report shows: what was skipped, and what was counted.
    pub(crate) notes: Vec<String>,
    log: PathBuf,
}

/// How many tests ended how.
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

    /// A command of cargo, as words with one space between them.
    pub(crate) fn cargo(name: &str, arguments: &str) -> Self {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        Self::new(name, &[&cargo]).args(&arguments.split(' ').collect::<Vec<_>>())
    }

    /// Under another name than that of its command.
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

    /// The command runs tests: it fails if it ran none.
    pub(crate) fn with_tests(mut self) -> Self {
        self.has_tests = true;
        self
    }

    /// Runs it for its exit code alone. `None` if it was killed.
    pub(crate) fn exit_code(self) -> Option<i32> {
        let mut command = Command::new(&self.words[0]);
        let status = command.args(&self.words[1..]).stdin(Stdio::null()).status();
        status
            .unwrap_or_else(|error| panic!("{:?} does not start: {error}", self.words))
            .code()
    }

    /// Runs it, and kills it when it takes too long. Its output goes to its log.
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
        // The group has its number until the process is reaped.
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
        // Said at once: a run that is cut off later prints no report.
        let lines = outcome.lines();
        let failed = lines.iter().filter(|line| line.ends_with(" ... FAILED"));
        failed.for_each(|line| eprintln!("           {line}"));
        outcome
    }
}

/// Whether the process has ended. It is not reaped.
fn has_ended(process: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = waitid(WaitId::Pid(Pid::from_child(process)), options);
    ended.expect("our own child can be looked at").is_some()
}

impl Outcome {
    /// The lines of its log.
    pub(crate) fn lines(&self) -> Vec<String> {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// What its tests said where they failed; else the end of its log.
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

    /// Counts the tests in what the test harnesses print.
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

/// Ends all processes of a job's group.
fn kill_group(leader: &Child) {
    let _nothing_left = kill_process_group(Pid::from_child(leader), Signal::KILL);
}

/// Runs these one after the other, all of them, each at the priority that is asked for then.
pub(crate) fn run_lane(jobs: Vec<Job>, priority: impl Fn() -> Priority) -> Vec<Outcome> {
    jobs.into_iter().map(|job| job.run(priority())).collect()
}

/// Runs these beside each other.
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
