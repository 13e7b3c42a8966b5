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
use std::process::Command;

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
    Err(cannot_start(
        program,
        &Command::new(program).args(arguments).exec(),
    ))
}

/// Returns the failure of a command that is not executed.
pub(crate) fn cannot_start(program: &OsStr, error: &io::Error) -> Failure {
    let status = match error.kind() {
        ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    };
    Failure::new(
        status,
        format_args!("{} cannot be started: {error}", program.display()),
    )
}
