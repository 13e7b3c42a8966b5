//! The process that becomes the command of `run`: prepares itself, and executes the command in its
//! place.
//!
//! The supervisor cannot do these preparations. If it unblocked signals, one of them could end it;
//! if it gave the terminal away after the start, the command could use the terminal too early.

use crate::exit::{self, Failure};
use crate::processes::Group;
use crate::signals;
use crate::terminal::Terminal;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The variable with the process that gets the sockets of a unit of systemd.
const LISTEN_PID: &str = "LISTEN_PID";

/// Executes `command`, as the child of this supervisor, which `front` started.
pub(crate) fn launch(front: i32, supervisor: i32, command: &[OsString]) -> Result<u8, Failure> {
    let internal = || Failure::new(exit::USAGE, "`launch` is internal: call `distlock run`");
    let (Some(front), Some(supervisor), [program, arguments @ ..]) =
        (Pid::from_raw(front), Pid::from_raw(supervisor), command)
    else {
        return Err(internal());
    };
    // The front kills all descendants of a killed supervisor. With this signal, the command ends at
    // once, even if both are killed.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::system("the parent process cannot be watched", error))?;
    if getppid() != Some(supervisor) {
        return Err(internal());
    }
    if let Some(terminal) = Terminal::of(front) {
        terminal.give_to_unless_shared(Group(getpid()));
    }
    signals::unblock()?;
    let mut executed = Command::new(program);
    executed.args(arguments);
    // The sockets that systemd passes are meant for the process that this variable names.
    let of_front = front.as_raw_pid().to_string();
    if std::env::var_os(LISTEN_PID).is_some_and(|pid| pid == *of_front) {
        executed.env(LISTEN_PID, getpid().as_raw_pid().to_string());
    }
    Err(cannot_start(program, &executed.exec()))
}

/// Returns the failure of a command that is not executed.
pub(crate) fn cannot_start(program: &OsStr, error: &io::Error) -> Failure {
    let is_there = program.as_encoded_bytes().contains(&b'/') && Path::new(program).exists();
    let program = program.display();
    match error.kind() {
        ErrorKind::NotFound if is_there => Failure::new(
            exit::NOT_FOUND,
            format_args!("{program} cannot be started: its interpreter or loader is missing"),
        ),
        ErrorKind::NotFound => Failure::new(
            exit::NOT_FOUND,
            format_args!("{program}: command not found"),
        ),
        _ => Failure::new(
            exit::NOT_EXECUTABLE,
            format_args!("{program} cannot be started: {error}"),
        ),
    }
}
