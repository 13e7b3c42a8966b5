//! [`Peer`]: a program of another language that executes commands about its library's locks, one in
//! each line. `peers/README.md` describes the protocol.

use crate::built;
use crate::libraries::Library;
use crossbeam_channel::{Receiver, Sender, unbounded};
use distlock_tests::lifeline::LifeLine;
use distlock_tests::time::scaled;
use lock_conformance::{forget_process, watch_process};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long a program may take until it is ready. Measured: a second for a JVM, on a machine that
/// is not busy.
const START: Duration = Duration::from_secs(60);

/// How long an answer may take, unless the test says otherwise.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// How long a subscribed waiter of the peer needs until it sleeps: before that it tries once more.
pub(crate) const SETTLED: Duration = Duration::from_millis(150);

/// The name in lines for the program itself instead of one of its threads.
const MAIN: &str = "main";

/// A running program, which is killed when this process ends.
pub(crate) struct Peer {
    what: String,
    /// The folder of its program.
    program: &'static str,
    can_reopen: bool,
    input: Mutex<Option<ChildStdin>>,
    threads: Arc<Mutex<Threads>>,
    errors: Arc<Mutex<String>>,
    process: Mutex<Process>,
}

struct Process {
    /// `None` as soon as the child is to be reaped.
    line: Option<LifeLine>,
    child: Child,
}

/// The answers, by the thread that gives them.
#[derive(Default)]
struct Threads {
    channels: HashMap<String, (Sender<String>, Receiver<String>)>,
    /// The number of answers that the test has not taken yet.
    owed: usize,
    /// Whether the program's output has ended, so that no answer comes any more.
    is_over: bool,
}

impl Threads {
    fn of(&mut self, thread: &str) -> &(Sender<String>, Receiver<String>) {
        self.channels
            .entry(thread.to_owned())
            .or_insert_with(unbounded)
    }
}

/// An answer that is yet to come.
#[must_use = "an answer without a waiter is taken for that to the next line"]
pub(crate) struct Pending<'a> {
    peer: &'a Peer,
    thread: String,
    line: String,
}

/// An answer: the words after `ok`, or those after `error`.
pub(crate) type Answer = Result<String, String>;

impl Peer {
    /// Starts this library's program on a store.
    pub(crate) fn start(library: &'static Library, url: &str, arguments: &[&str]) -> Self {
        let program = program(library);
        let mut command = Command::new(&program);
        command.arg(url).args(library.arguments).args(arguments);
        let what = format!("{command:?}");
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut process = process.unwrap_or_else(|error| {
            panic!("{what} does not start ({error}): build it with `tests/interop.sh prepare`")
        });
        let line = LifeLine::of(&process);
        watch_process(process.id());
        let input = Mutex::new(process.stdin.take());
        let threads = Arc::<Mutex<Threads>>::default();
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let listener = Arc::clone(&threads);
        thread::spawn(move || listen(output, &listener));
        let errors = Arc::<Mutex<String>>::default();
        let (text, pipe) = (
            Arc::clone(&errors),
            BufReader::new(process.stderr.take().expect("piped")),
        );
        thread::spawn(move || {
            for line in pipe.lines().map_while(Result::ok) {
                *text.lock() += &(line + "\n");
            }
        });
        let process = Mutex::new(Process {
            line: Some(line),
            child: process,
        });
        let (program, can_reopen) = (library.program, library.can_reopen());
        let peer = Self {
            what,
            program,
            can_reopen,
            input,
            threads,
            errors,
            process,
        };
        let says = peer.next("ready", "the start", START);
        assert_eq!(says, library.pin.says(), "{} is another one", peer.what);
        say!("{}: {says}", library.name);
        peer
    }

    /// Whether it is a program of this library, in the same version.
    pub(crate) fn runs(&self, library: &Library) -> bool {
        self.program == library.program
    }

    /// Has a [closed](Self::close) program connect to another store.
    pub(crate) fn open(&self, library: &Library, url: &str, arguments: &[&str]) {
        let words = [&["open", url], library.arguments, arguments]
            .concat()
            .join(" ");
        let says = self.tell(MAIN, &words).within(START);
        assert_eq!(says, library.pin.says(), "{} is another one", self.what);
    }

    /// Closes the program's client. Returns `false` if the program cannot be used again.
    pub(crate) fn close(&self) -> bool {
        self.can_reopen && self.is_fresh() && self.tell(MAIN, "close").answer(BOUND).is_ok()
    }

    /// Sends a line to this thread.
    pub(crate) fn tell(&self, thread: &str, line: &str) -> Pending<'_> {
        self.threads.lock().owed += 1;
        let mut input = self.input.lock();
        let input = input.as_mut().expect("its input is still open");
        writeln!(input, "{thread} {line}").unwrap_or_else(|error| panic!("{}: {error}", self.what));
        Pending {
            peer: self,
            thread: thread.to_owned(),
            line: line.to_owned(),
        }
    }

    /// Sends a line that has no answer.
    pub(crate) fn shout(&self, thread: &str, line: &str) {
        drop(self.tell(thread, line));
        self.threads.lock().owed -= 1;
    }

    /// Has this thread do something that must succeed, and waits for it.
    #[track_caller]
    pub(crate) fn ask(&self, thread: &str, line: &str) -> String {
        self.tell(thread, line).ok()
    }

    /// Has this thread do something that the library must refuse, and returns what it says.
    #[track_caller]
    pub(crate) fn refusal(&self, thread: &str, line: &str) -> String {
        match self.tell(thread, line).answer(BOUND) {
            Err(refusal) => refusal,
            Ok(words) => panic!(
                "{}: `{thread} {line}` was not refused, but `{words}`",
                self.what
            ),
        }
    }

    /// Kills the program with SIGKILL.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        let mut process = self.process.lock();
        process.line = None;
        forget_process(process.child.id());
        let _reaped = process.child.wait();
    }

    /// Whether it runs and owes no answer.
    pub(crate) fn is_fresh(&self) -> bool {
        let threads = self.threads.lock();
        !threads.is_over && threads.owed == 0
    }

    /// What it has written to standard error so far.
    pub(crate) fn errors(&self) -> String {
        self.errors.lock().clone()
    }

    fn signal(&self, signal: Signal) {
        // Once reaped, the number may be another process's.
        let process = self.process.lock();
        if process.line.is_some() {
            let pid = i32::try_from(process.child.id())
                .ok()
                .and_then(Pid::from_raw);
            let _gone = kill_process_group(pid.expect("a child has a number"), signal);
        }
    }

    /// The next answer of this thread.
    #[track_caller]
    fn next(&self, thread: &str, line: &str, bound: Duration) -> String {
        let answers = {
            let mut threads = self.threads.lock();
            let is_over = threads.is_over;
            let (_, answers) = threads.of(thread);
            (!is_over || !answers.is_empty()).then(|| answers.clone())
        };
        let answer = answers.and_then(|answers| answers.recv_timeout(scaled(bound)).ok());
        answer.filter(|answer| answer != END).unwrap_or_else(|| {
            panic!(
                "{}: no answer to `{thread} {line}` within {bound:?}\n--- stderr ---\n{}---",
                self.what,
                self.errors()
            )
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- stderr of {} ---\n{}---", self.what, self.errors());
        }
        self.kill();
    }
}

impl Pending<'_> {
    /// Waits for the answer. Panics after `bound` (times the scale).
    #[track_caller]
    pub(crate) fn answer(self, bound: Duration) -> Answer {
        let answer = self.peer.next(&self.thread, &self.line, bound);
        self.peer.threads.lock().owed -= 1;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", words) => Ok(words.to_owned()),
            ("error", words) => Err(words.to_owned()),
            _ => panic!(
                "{}: `{} {}` was answered `{answer}`",
                self.peer.what, self.thread, self.line
            ),
        }
    }

    /// Waits for the answer, which must be `ok`.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        self.within(BOUND)
    }

    /// Waits for the answer, which must be `ok`, for this time (times the scale) at most.
    #[track_caller]
    pub(crate) fn within(self, bound: Duration) -> String {
        let said = format!("{}: `{} {}`", self.peer.what, self.thread, self.line);
        self.answer(bound)
            .unwrap_or_else(|error| panic!("{said}: {error}"))
    }

    /// Whether the answer has arrived.
    pub(crate) fn is_there(&self) -> bool {
        !self.peer.threads.lock().of(&self.thread).1.is_empty()
    }
}

/// What the channel of a thread contains instead of an answer when the program has ended.
const END: &str = "";

/// Passes each line of the output to the channel of its thread.
fn listen(output: impl BufRead, threads: &Mutex<Threads>) {
    for line in output.lines().map_while(Result::ok) {
        let (thread, answer) = line.split_once(' ').unwrap_or((&line, ""));
        let _ours = threads.lock().of(thread).0.send(answer.to_owned());
    }
    let mut threads = threads.lock();
    threads.is_over = true;
    for (sender, _) in threads.channels.values() {
        let _ours = sender.send(END.to_owned());
    }
}

/// Returns the path of the library's program.
fn program(library: &Library) -> PathBuf {
    built::program(&target(), library.program, library.language)
}

/// Returns the folder in which Cargo builds.
pub(crate) fn target() -> PathBuf {
    // target/<profile>/deps/interop-<hash>
    let own = std::env::current_exe().expect("a program knows where it is");
    own.ancestors()
        .nth(3)
        .expect("tests lie in target/<profile>/deps")
        .to_owned()
}
