//! The process of `run` that the user starts. Passes signals to the supervisor, which holds the
//! lock and starts the command, and exits with the supervisor's status.
//!
//! There are two processes so that one remains if the other is killed, and so that Ctrl-Z can stop
//! this one while the supervisor continues to renew the lock.

use crate::arguments::in_order;
use crate::exit::{self, Failure};
use crate::output;
use crate::processes::{adopt_orphans, kill_descendants};
use crate::signals::Signals;
use crate::terminal::Terminal;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The running program, even if its file was replaced meanwhile.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Starts a supervisor with the arguments of this process, and returns its exit status.
pub(crate) fn run() -> Result<u8, Failure> {
    let signals = Signals::block_unless_ignored()?;
    adopt_orphans()?;
    let supervisor = Supervisor::start()?;
    loop {
        match signals.wait()? {
            Signal::CHILD => {
                if let Some(status) = supervisor.ended()? {
                    return Ok(status);
                }
            }
            signal => supervisor.signal(signal),
        }
    }
}

/// The process that holds the lock.
struct Supervisor(Pid);

impl Supervisor {
    /// Starts the supervisor in a separate process group: signals of the terminal reach it only
    /// through this process.
    fn start() -> Result<Self, Failure> {
        let front = getpid().as_raw_pid().to_string();
        let supervisor = Command::new(OWN_PROGRAM)
            .arg0("distlock")
            .args(["supervise", &front])
            // The arguments after the program's name and `run`.
            .args(in_order(std::env::args_os()).into_iter().skip(2))
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::system("the supervisor cannot be started", error))?;
        Ok(Self(Pid::from_child(&supervisor)))
    }

    fn signal(&self, signal: Signal) {
        // A failure is ignored: if the supervisor has ended, SIGCHLD arrives next.
        let _sent = kill_process(self.0, signal);
    }

    /// Returns the exit status, if the supervisor has ended. Also reaps the orphans that have
    /// become children of this process: orphans among its descendants or, if this is process 1 of a
    /// container, all orphans of the container.
    fn ended(&self) -> Result<Option<u8>, Failure> {
        loop {
            let (process, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => {
                    let what = "the supervisor is gone (was SIGCHLD ignored at the start?)";
                    return Err(Failure::system(what, error));
                }
            };
            if process != self.0 {
                continue;
            }
            if status.stopped() {
                // A stopped supervisor would not renew the lock.
                self.signal(Signal::CONT);
                continue;
            }
            return Ok(Some(status.exit_status().map_or_else(was_killed, |code| {
                u8::try_from(code).unwrap_or(exit::SOFTWARE)
            })));
        }
    }
}

/// Handles a killed supervisor, and returns the exit status. Kills the processes that it leaves,
/// because their lock is no longer renewed.
fn was_killed() -> u8 {
    kill_descendants();
    if let Some(terminal) = Terminal::of(getpid()) {
        terminal.reclaim();
    }
    output::report(
        "the process that held the lock was killed; the command was killed, too, and the lock is \
         free when its lease ends",
    );
    exit::LOST
}
