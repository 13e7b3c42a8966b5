//! [`Child`]: a worker process, as its parent controls it.

use rustix::process::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A worker process, which ends when its input is closed.
pub(super) struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a worker and waits until it is ready.
    pub(super) fn start(program: &Path, arguments: &[String]) -> Self {
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut child = Self {
            process,
            input,
            output,
        };
        let line = child.line();
        assert_eq!(line, "ready", "{arguments:?} did not get ready");
        child
    }

    /// Starts a turn of this length in the worker. [`end`](Self::end) must follow.
    pub(super) fn begin(&mut self, time: Duration) {
        let input = self.input.as_mut().expect("open until it is dropped");
        writeln!(input, "run {}", time.as_millis()).expect("the worker reads");
    }

    /// Requests the figures that a worker must not collect during a turn, because that would
    /// disturb the measurement. [`end`](Self::end) must follow.
    pub(super) fn look(&mut self) {
        let input = self.input.as_mut().expect("open until it is dropped");
        writeln!(input, "look").expect("the worker reads");
    }

    /// Waits for the worker's answer and returns it.
    pub(super) fn end(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("not JSON ({error}): {line:?}"))
    }

    /// Returns the process ID of the worker.
    pub(super) fn id(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .expect("the worker writes text");
        line.trim_end().to_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.input.take());
        let _reaped = self.process.wait();
    }
}
