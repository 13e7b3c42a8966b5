//! Several processes of the same program: the parent divides the jobs and gathers the reports, and
//! its children sell.
//!
//! A child writes its reports to standard output, one in each line, and stops when its standard
//! input ends. The parent closes that pipe to stop the child; if the parent dies, the system closes
//! it. (On a terminal Ctrl-C reaches the children directly; a SIGTERM reaches only the process to
//! which it was sent.)

use crate::Arguments;
use crate::report::Report;
use crate::shared::{Trouble, exit};
use crate::worker;
use crossbeam_channel::{Receiver, RecvError, Sender, never, select, unbounded};
use distlock::Interrupt;
use rustix::process::Signal;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;

/// Runs all processes until the jobs are done, and hands every report to `count`.
pub(crate) fn run_all(
    arguments: &Arguments,
    counter: &Path,
    stop: &Interrupt,
    mut count: impl FnMut(Report),
) -> Result<(), Trouble> {
    let mut family = Family::start(arguments, counter)?;
    let (reports, told) = unbounded();
    family.listen(&reports);
    drop(reports); // so that the loop ends with the last child's output
    let mut stopped = Receiver::from(stop.fired());
    loop {
        select! {
            recv(told) -> report => match report {
                Ok(report) => {
                    // A failure or an interrupt of one process stops all.
                    if matches!(report, Report::Failed(_) | Report::Interrupted) {
                        stop.fire();
                    }
                    count(report);
                }
                Err(RecvError) => break,
            },
            recv(stopped) -> _ => {
                family.stop();
                stopped = never(); // the interrupt fires once
            }
        }
    }
    family.reap(stop)
}

/// Runs a child process, in place of [`crate::run`].
pub(crate) fn run_as_child(arguments: &Arguments) -> Result<u8, Trouble> {
    let stop = Interrupt::on_ctrl_c()?;
    thread::spawn({
        let stop = stop.clone();
        move || {
            let _ended_or_broken = io::copy(&mut io::stdin().lock(), &mut io::sink());
            stop.fire();
        }
    });
    let counter = arguments
        .counter
        .as_deref()
        .expect("clap requires it for a child");
    let mut output = io::stdout().lock();
    let result = worker::run_all(arguments, counter, &stop, |report| {
        if writeln!(output, "{report}").is_err() {
            stop.fire(); // the receiver is gone
        }
    });
    // The parent prints the failure, so that there is one line for all processes.
    if let Err(trouble) = result {
        let _closed_output = writeln!(output, "{}", Report::Failed(trouble));
    }
    Ok(0)
}

/// The child processes. Dropping this stops them, even if a later child could not be started.
struct Family(Vec<Member>);

struct Member {
    process: Child,
    life_line: Option<ChildStdin>,
}

impl Family {
    fn start(arguments: &Arguments, counter: &Path) -> Result<Self, Trouble> {
        let mut family = Self(Vec::new());
        for place in 0..arguments.processes {
            // The first children get one job more where the number cannot be divided evenly.
            let jobs = (arguments.jobs + arguments.processes - 1 - place) / arguments.processes;
            if jobs == 0 {
                break;
            }
            let mut process = start_child(arguments, counter, jobs).map_err(|error| {
                Trouble::new(
                    exit::SOFTWARE,
                    format_args!("cannot start another process: {error}"),
                )
            })?;
            let life_line = process.stdin.take();
            family.0.push(Member { process, life_line });
        }
        Ok(family)
    }

    /// Reads every child's output on a thread of its own.
    fn listen(&mut self, reports: &Sender<Report>) {
        for member in &mut self.0 {
            let output = member.process.stdout.take().expect("it was piped");
            let reports = reports.clone();
            thread::spawn(move || forward(output, &reports));
        }
    }

    fn stop(&mut self) {
        for member in &mut self.0 {
            member.life_line = None;
        }
    }

    /// Waits for the children, whose output has ended, and checks their exit statuses.
    fn reap(mut self, stop: &Interrupt) -> Result<(), Trouble> {
        let mut result = Ok(());
        for member in &mut self.0 {
            let ended = member.process.wait().map_err(|error| {
                Trouble::new(
                    exit::SOFTWARE,
                    format_args!("cannot wait for a process: {error}"),
                )
            })?;
            let harmless = ended.success() || (stop.is_fired() && is_early_ctrl_c(ended));
            if !harmless {
                result = result.and(Err(Trouble::new(
                    exit::SOFTWARE,
                    format_args!(
                        "process {} did not end well ({ended}): what it sold last may be missing \
                         here",
                        member.process.id()
                    ),
                )));
            }
        }
        result
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.stop();
        for member in &mut self.0 {
            let _already_gone = member.process.wait();
        }
    }
}

fn start_child(arguments: &Arguments, counter: &Path, jobs: usize) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--child")
        .args(["--url", &arguments.url, "--name", &arguments.name]);
    command.args([
        "--workers",
        &arguments.workers.to_string(),
        "--jobs",
        &jobs.to_string(),
    ]);
    command.arg("--counter").arg(counter);
    if arguments.without_lock {
        command.arg("--unsafe");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

fn forward(output: impl Read, reports: &Sender<Report>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let report = line.parse().unwrap_or_else(Report::Failed);
        if reports.send(report).is_err() {
            return;
        }
    }
}

/// Returns whether Ctrl-C, or a similar signal, killed the child before the child could handle it.
/// Such a child has sold nothing yet.
fn is_early_ctrl_c(ended: ExitStatus) -> bool {
    let signals = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    ended
        .signal()
        .is_some_and(|signal| signals.contains(&signal))
}
