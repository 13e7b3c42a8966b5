//! [`Example`] and [`Child`]: an example or the command `distlock` as a second process, which a
//! test can write to, read from, pause and kill.

use super::lifeline::LifeLine;
use super::time::{eventually, scaled};
use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use lock_core::{Clock, SystemClock};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread;
use std::time::Duration;

/// A program to be started as another process: an example, the command `distlock`, or any other.
pub struct Example(Command);

impl Example {
    /// Returns the example of this name, which is built if necessary.
    pub fn new(name: &str) -> Self {
        Self(Command::new(built("--example", name)))
    }

    /// Returns the command `distlock`, which is built if necessary.
    pub fn distlock(arguments: &[&str]) -> Self {
        Self::program(distlock()).args(arguments)
    }

    /// Returns the program at this path.
    pub fn program(path: impl AsRef<Path>) -> Self {
        Self(Command::new(path.as_ref()))
    }

    pub fn arg(mut self, argument: &str) -> Self {
        self.0.arg(argument);
        self
    }

    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.0.args(arguments);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Ignores the signals HUP, INT and TERM in the program from its start, as `nohup` and a
    /// script's `&` do with some of them.
    pub fn with_signals_ignored(self) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' HUP INT TERM; exec \"$@\"", "sh"]);
        shell.arg(self.0.get_program()).args(self.0.get_args());
        Self(shell)
    }

    /// Ignores no signal in the program, as if started from an interactive shell. Otherwise tests
    /// that were started in the background, where Ctrl-C is ignored, would pass this on to it.
    pub fn with_default_signals(self) -> Self {
        let mut env = Command::new("env");
        env.arg("--default-signal")
            .arg(self.0.get_program())
            .args(self.0.get_args());
        env.envs(
            self.0
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        Self(env)
    }

    /// Starts the program in a process group of its own.
    pub fn spawn(mut self) -> Child {
        self.0
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let what = format!("{:?}", self.0);
        let mut process = self
            .0
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{what} does not start: {error}"));
        let line = LifeLine::of(&process);
        let input = process.stdin.take();
        let output = lines_of(process.stdout.take().expect("piped"));
        let errors = collect(process.stderr.take().expect("piped"));
        let line = Some(line);
        Child {
            what,
            line,
            process,
            input,
            output,
            said: Vec::new(),
            errors,
            status: None,
        }
    }
}

/// A running process that reads and writes lines (mostly JSON). Dropping it kills its process group
/// and reaps the process.
pub struct Child {
    what: String,
    /// `None` once the process is reaped.
    line: Option<LifeLine>,
    process: std::process::Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    /// Every line that was read from the output, for the message of a failed test.
    said: Vec<String>,
    errors: Collected,
    status: Option<ExitStatus>,
}

impl Child {
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Writes a line to the process's standard input.
    #[track_caller]
    pub fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is still open");
        writeln!(input, "{line}").unwrap_or_else(|error| panic!("{}: {error}", self.what));
    }

    /// Writes these characters without a line end, as keys that are pressed on a terminal.
    #[track_caller]
    pub fn press(&mut self, keys: &str) {
        let input = self.input.as_mut().expect("its input is still open");
        write!(input, "{keys}").unwrap_or_else(|error| panic!("{}: {error}", self.what));
    }

    /// Closes the process's standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Reads lines until `pick`, which is called with each line that is JSON, returns a value.
    /// Panics after `bound` (times the scale).
    #[track_caller]
    pub fn expect<T>(
        &mut self,
        what: &str,
        bound: Duration,
        mut pick: impl FnMut(&Json) -> Option<T>,
    ) -> T {
        let until = SystemClock.now() + scaled(bound);
        loop {
            match self.output.recv_timeout(until.since(SystemClock.now())) {
                Ok(line) => {
                    let json = serde_json::from_str::<Json>(&line).ok();
                    self.said.push(line);
                    if let Some(found) = json.as_ref().and_then(&mut pick) {
                        return found;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.fail(&format!("did not say in time: {what}"))
                }
                Err(RecvTimeoutError::Disconnected) => self.fail(&format!("ended without: {what}")),
            }
        }
    }

    /// Waits for the line `{"event": event, ..}` and returns it.
    #[track_caller]
    pub fn expect_event(&mut self, event: &str, bound: Duration) -> Json {
        self.expect(event, bound, |json| {
            (json["event"] == event).then(|| json.clone())
        })
    }

    /// Kills the process and all its descendants in the group, and waits for its end.
    pub fn kill(&mut self) {
        self.signal_group(Signal::KILL);
        self.wait_exit(Duration::from_secs(10));
    }

    /// Pauses the whole group by SIGSTOP.
    pub fn pause(&self) {
        self.signal_group(Signal::STOP);
    }

    /// Resumes the whole group by SIGCONT.
    pub fn resume(&self) {
        self.signal_group(Signal::CONT);
    }

    /// Sends SIGINT to the whole group, as a terminal does on Ctrl-C.
    pub fn interrupt(&self) {
        self.signal_group(Signal::INT);
    }

    /// Sends SIGTERM to the process but not to its descendants, as some service managers do.
    pub fn terminate(&self) {
        if self.status.is_none() {
            let _gone = kill_process(self.pid(), Signal::TERM);
        }
    }

    /// Waits until the process has ended, and returns its exit code, or as a shell does 128 plus
    /// the number of the signal that ended it.
    #[track_caller]
    pub fn wait_exit(&mut self, bound: Duration) -> i32 {
        if self.status.is_none() {
            let (process, what) = (&mut self.process, &self.what);
            let status = eventually(&format!("{what} ends"), bound, || {
                process.try_wait().expect("our own child can be looked at")
            });
            self.line = None;
            self.status = Some(status);
        }
        let status = self.status.expect("set above");
        status
            .code()
            .or_else(|| status.signal().map(|signal| 128 + signal))
            .expect("one of the two")
    }

    /// Returns whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self
                .process
                .try_wait()
                .expect("our own child can be looked at");
            if self.status.is_some() {
                self.line = None;
            }
        }
        self.status.is_none()
    }

    /// Returns all lines of the process's standard output. Called after its end; before, this
    /// returns only once no line has arrived for five seconds (times the scale).
    pub fn output(&mut self) -> String {
        while let Ok(line) = self.output.recv_timeout(scaled(Duration::from_secs(5))) {
            self.said.push(line);
        }
        self.said.join("\n")
    }

    /// Returns the text that the process has written to standard error so far, or the whole text if
    /// its end was awaited.
    pub fn errors(&self) -> String {
        if self.status.is_some() {
            // A descendant may still hold the pipe open, so the wait is bounded.
            let _ended = self.errors.end.recv_timeout(scaled(Duration::from_secs(5)));
        }
        self.errors.text.lock().clone()
    }

    fn signal_group(&self, signal: Signal) {
        // After the process is reaped, its number may belong to another process.
        if self.status.is_none() {
            let _gone = kill_process_group(self.pid(), signal);
        }
    }

    fn pid(&self) -> Pid {
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw);
        pid.expect("a child has a number")
    }

    #[track_caller]
    fn fail(&self, why: &str) -> ! {
        let (said, errors) = (self.said.join("\n"), self.errors());
        panic!(
            "{} {why}\n--- stdout ---\n{said}\n--- stderr ---\n{errors}\n---",
            self.what
        )
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- stderr of {} ---\n{}---", self.what, self.errors());
        }
        self.signal_group(Signal::KILL);
        self.line = None;
        if self.status.is_none() {
            let _reaped = self.process.wait();
        }
    }
}

/// Returns the lines of a pipe, which a thread reads until the pipe ends.
fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = unbounded();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The text that has arrived from a pipe so far.
struct Collected {
    text: Arc<Mutex<String>>,
    /// Disconnected when the pipe has ended.
    end: Receiver<()>,
}

/// Collects the text of a pipe on a thread.
fn collect(pipe: impl Read + Send + 'static) -> Collected {
    let text = Arc::new(Mutex::new(String::new()));
    let writer = Arc::clone(&text);
    let (reading, end) = unbounded();
    thread::spawn(move || {
        let _reading = reading;
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut text = writer.lock();
            text.push_str(&line);
            text.push('\n');
        }
    });
    Collected { text, end }
}

/// Returns the path of the command `distlock`, which is built if necessary.
pub fn distlock() -> PathBuf {
    built("--bin", "distlock")
}

/// Returns the path of the example that serves metrics, which is built if necessary.
pub fn metrics_example() -> PathBuf {
    built("--bin", "distlock-metrics-example")
}

/// Returns the path of a program of this package, which Cargo builds with the tests.
pub fn own_program(name: &str) -> PathBuf {
    profile_dir().join(name)
}

/// Returns the folder `target/<profile>`, in whose folder `deps` the test binaries are.
fn profile_dir() -> PathBuf {
    let own = std::env::current_exe().expect("a program knows where it is");
    own.ancestors()
        .nth(2)
        .expect("tests lie in target/<profile>/deps")
        .to_owned()
}

/// Returns the path of the binary of an example or a program. Cargo builds it once in each run,
/// because after `cargo test --test NAME` the binary may be missing or outdated.
fn built(kind: &'static str, name: &str) -> PathBuf {
    static BUILT: LazyLock<Mutex<HashMap<String, Arc<OnceLock<PathBuf>>>>> =
        LazyLock::new(Mutex::default);
    let cell = Arc::clone(BUILT.lock().entry(name.to_owned()).or_default());
    cell.get_or_init(|| build(kind, name)).clone()
}

/// The environment variable that the suite sets because it has just built all examples and
/// programs.
const BUILT: &str = "LOCK_TEST_BUILT";

fn build(kind: &str, name: &str) -> PathBuf {
    let profile_dir = profile_dir();
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let folder = if kind == "--example" { "examples" } else { "" };
    let binary = profile_dir.join(folder).join(name);
    // The suite has built it. Cargo may now be running for another job, and would make this test
    // wait.
    if std::env::var_os(BUILT).is_some() && binary.exists() {
        return binary;
    }
    let target = profile_dir.parent().expect("a profile lies in target");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // With the features that `tests/run.sh` uses: with other features Cargo would build the library
    // again.
    build.args([
        "build",
        "--quiet",
        "--workspace",
        "--all-features",
        kind,
        name,
    ]);
    build.args(["--profile", profile, "--target-dir"]);
    build.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    // These variables describe the package of this test. If their values differ from the last
    // build, some build scripts run again, and Cargo rebuilds all that depends on them in the
    // middle of the tests.
    for (variable, _) in std::env::vars_os() {
        if variable
            .to_str()
            .is_some_and(|it| it.starts_with("CARGO_PKG_") || it.starts_with("CARGO_MANIFEST_"))
        {
            build.env_remove(variable);
        }
    }
    let built = build.output();
    match built {
        Ok(output) if !output.status.success() => {
            panic!("{name}: {}", String::from_utf8_lossy(&output.stderr))
        }
        // Without Cargo, the existing binary is used.
        Ok(_) | Err(_) => assert!(binary.exists(), "there is no {}", binary.display()),
    }
    binary
}
