//! Exit statuses, and the line on standard error that explains a failure.

use distlock::{Error, ErrorKind};
use rustix::process::{Signal, WaitStatus};
use std::error::Error as StdError;
use std::fmt;

/// The lock is held by another client, or was held until the end of the wait (`-E` sets another
/// status). Also: `break` broke nothing, the user did not confirm `quorum init`, or `quorum status`
/// found no majority that votes.
pub(crate) const CONFLICT: u8 = 1;
/// `doctor` has found a danger that the user has not accepted.
pub(crate) const DANGER: u8 = 1;
/// An argument is wrong. Statuses from 64 to 78 are BSD's `sysexits`.
pub(crate) const USAGE: u8 = 64;
/// The value under the key is not a lock in the expected format.
pub(crate) const DATA: u8 = 65;
/// The store could not be reached, or too few replicas confirmed, or the lease was too short.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Any other failure.
pub(crate) const SOFTWARE: u8 = 70;
/// The lock was lost, or `run` stopped its command.
pub(crate) const LOST: u8 = 75;
/// The URL or a setting is wrong, the store refuses the client, or the store does not support the
/// operation.
pub(crate) const CONFIGURATION: u8 = 78;
/// The command exists and cannot be started.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command, or its interpreter or loader is missing.
pub(crate) const NOT_FOUND: u8 = 127;

/// Returns the status that a shell reports for a program ended by this signal.
pub(crate) fn of_signal(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(SOFTWARE)
}

/// Returns the status that a shell reports for an ended process.
pub(crate) fn of_process(status: WaitStatus) -> u8 {
    let by_signal = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(by_signal);
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(SOFTWARE)
}

/// A failure of the program: the exit status, and the line that explains it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    line: String,
}

impl Failure {
    /// Creates a failure with this status. Each run of white space in `what`, such as a line break,
    /// becomes one space.
    pub(crate) fn new(status: u8, what: impl fmt::Display) -> Self {
        let line = what
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        Self { status, line }
    }

    /// Creates the failure of a system call that no change of the arguments can correct.
    pub(crate) fn system(what: &str, error: impl fmt::Display) -> Self {
        Self::new(SOFTWARE, format_args!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (status, remedy) = match error.kind() {
            ErrorKind::Unavailable => (
                UNAVAILABLE,
                "check that the store is up and that the URL names it",
            ),
            ErrorKind::InsufficientReplicas => (
                UNAVAILABLE,
                "check the replicas, or ask for fewer by `replicas` in the URL",
            ),
            // No remedy is added, because the error's text names the setting.
            ErrorKind::Configuration | ErrorKind::Unsupported => {
                return Self::new(CONFIGURATION, with_sources(&error));
            }
            ErrorKind::Misuse => (USAGE, "change the arguments (see --help)"),
            ErrorKind::ForeignFormat => {
                let remedy = "choose another name, find out which program uses this one, or add \
                              --slots if it is a semaphore";
                (DATA, remedy)
            }
            ErrorKind::LeaseTooShort => (
                UNAVAILABLE,
                "its lease could not be renewed: check that the store is up",
            ),
            ErrorKind::Lost => (
                LOST,
                "another holder may have entered: check what was done, then start again",
            ),
            _ => (SOFTWARE, "no remedy is known"),
        };
        Self::new(status, format_args!("{}; {remedy}", with_sources(&error)))
    }
}

/// Returns the text of an error, followed by the texts of its causes. A cause whose text is already
/// contained is not repeated.
pub(crate) fn with_sources(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let source_text = source.to_string();
        if !text.contains(&source_text) {
            text = format!("{text}: {source_text}");
        }
        next = source.source();
    }
    text
}
