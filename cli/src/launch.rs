//! The process that becomes the command of `run`: prepares itself, and then executes the command
//! without a new process.
//!
//! The supervisor cannot make these preparations. If it unblocked signals, one of them could end
//! it. If it put the command into the terminal's foreground after the start, the command could use
//! the terminal before that.

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

/// The variable with the ID of the process to which systemd passes the sockets of its unit.
const LISTEN_PID: &str = "LISTEN_PID";

/// Executes `command` in this process, a child of `supervisor`, which `front` has started. Returns
/// only if that fails.
pub(crate) fn launch(front: i32, supervisor: i32, command: &[OsString]) -> Result<u8, Failure> {
    let internal = || Failure::new(exit::USAGE, "`launch` is internal: call `distlock run`");
    let (Some(front), Some(supervisor), [program, arguments @ ..]) =
        (Pid::from_raw(front), Pid::from_raw(supervisor), command)
    else {
        return Err(internal());
    };
    // If the supervisor is killed, the front kills its descendants. By this signal the command ends
    // at once, even if the front is killed, too.
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
    // A program uses the sockets of systemd only if this variable has its own process ID.
    let of_front = front.as_raw_pid().to_string();
    if std::env::var_os(LISTEN_PID).is_some_and(|pid| pid == *of_front) {
        executed.env(LISTEN_PID, getpid().as_raw_pid().to_string());
    }
    Err(cannot_start(program, &executed.exec()))
}

/// Returns the failure of a command that could not be executed.
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
