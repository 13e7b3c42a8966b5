//! `run`, the process that the user starts: it passes signals to the supervisor, which holds the
//! lock and starts the command, and ends as that one does.
//!
//! It is a process of its own so that one of the two is left if the other is killed, and so that
//! Ctrl-Z can stop it while the supervisor goes on renewing the lock.

use crate::exit::{self, Failure};
use crate::output;
use crate::processes::{adopt_orphans, kill_descendants};
use crate::signals::Signals;
use crate::terminal::Terminal;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program that runs, also if its file was replaced meanwhile.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Starts a supervisor with the arguments of this process, and ends as it does.
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
    /// Starts it, in a process group of its own: signals of the terminal reach it by this process
    /// alone.
    fn start() -> Result<Self, Failure> {
        let front = getpid().as_raw_pid().to_string();
        let supervisor = Command::new(OWN_PROGRAM)
            .arg0("distlock")
            .args(["supervise", &front])
            // Behind the program's name and `run`.
            .args(std::env::args_os().skip(2))
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::system("the supervisor cannot be started", error))?;
        Ok(Self(Pid::from_child(&supervisor)))
    }

    fn signal(&self, signal: Signal) {
        // If it has ended, SIGCHLD comes next.
        let _sent = kill_process(self.0, signal);
    }

    /// The exit status, if it has ended.
    fn ended(&self) -> Result<Option<u8>, Failure> {
        let status = match waitpid(Some(self.0), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(Errno::INTR) => return Ok(None),
            Err(error) => {
                let what = "the supervisor is gone (was SIGCHLD ignored at the start?)";
                return Err(Failure::system(what, error));
            }
        };
        if status.stopped() {
            // A lock that nothing renews would be lost.
            self.signal(Signal::CONT);
            return Ok(None);
        }
        Ok(Some(status.exit_status().map_or_else(was_killed, |code| {
            u8::try_from(code).unwrap_or(exit::SOFTWARE)
        })))
    }
}

/// Stops what a supervisor that was killed leaves behind: nothing renews the lock.
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
