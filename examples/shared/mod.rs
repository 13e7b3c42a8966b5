//! How the larger examples begin and end: their arguments, one exit code for each kind of trouble,
//! and one line on standard error that says what happened and what the user can do about it.

use clap::Parser;
use distlock::{Error, ErrorKind};
use std::error::Error as StdError;
use std::fmt;
use std::process::ExitCode;

/// The exit codes of the examples, besides 0. Those from 64 to 78 are BSD's `sysexits`.
pub(crate) mod exit {
    /// The answer is no: the lock was busy, or the proof failed.
    pub(crate) const NO: u8 = 1;
    /// The store could not be reached, or did not answer.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// Any other failure.
    pub(crate) const SOFTWARE: u8 = 70;
    /// The lock was lost. Starting again may help.
    pub(crate) const LOST: u8 = 75;
    /// An argument, a setting or a name is wrong.
    pub(crate) const CONFIGURATION: u8 = 78;
    /// Ctrl-C, as a shell counts it: 128 and the signal's number.
    pub(crate) const INTERRUPTED: u8 = 130;
}

/// Why an example cannot go on: its exit code, and the line that explains it.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) code: u8,
    line: String,
}

impl Trouble {
    /// Returns trouble with this exit code. The lines of `what` are joined into one.
    pub(crate) fn new(code: u8, what: impl fmt::Display) -> Self {
        let line = what
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        Self { code, line }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

/// Each kind of the library's errors has its exit code and its advice.
impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let (code, remedy) = match error.kind() {
            ErrorKind::Unavailable => (
                exit::UNAVAILABLE,
                "check that the store is up and that `--url` names it",
            ),
            ErrorKind::Configuration => (
                exit::CONFIGURATION,
                "change `--url`, or the store's settings",
            ),
            ErrorKind::Misuse => (exit::CONFIGURATION, "change the arguments (see `--help`)"),
            ErrorKind::ForeignFormat => (
                exit::SOFTWARE,
                "choose another `--name`, or find out who uses this one",
            ),
            ErrorKind::Lost => (
                exit::LOST,
                "others may have been inside: look at what was done, then start again",
            ),
            ErrorKind::Interrupted => (exit::INTERRUPTED, "start it again when you like"),
            _ => (exit::SOFTWARE, "this program has no remedy for it"),
        };
        Self::new(code, format_args!("{}; {remedy}", with_sources(&error)))
    }
}

/// Returns the texts of an error and of its causes, down to that of the system. A cause that the
/// text already contains is not repeated.
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

/// Reads the arguments, runs the program with them, and reports how it ended.
pub(crate) fn main<A: Parser>(run: impl FnOnce(A) -> Result<u8, Trouble>) -> ExitCode {
    let ended = match A::try_parse() {
        Ok(arguments) => run(arguments),
        Err(refusal) if refusal.use_stderr() => Err(refused(&refusal)),
        Err(help) => {
            let _closed_output = help.print();
            return ExitCode::SUCCESS;
        }
    };
    match ended {
        Ok(code) => code.into(),
        Err(trouble) => {
            eprintln!("{}: {trouble}", A::command().get_name());
            trouble.code.into()
        }
    }
}

/// Shortens clap's error to its first paragraph, as one line.
fn refused(refusal: &clap::Error) -> Trouble {
    let text = refusal.to_string();
    let first = text.split("\n\n").next().unwrap_or(&text);
    let what = first.trim_start_matches("error: ");
    Trouble::new(
        exit::CONFIGURATION,
        format_args!("{what}; `--help` shows what is accepted"),
    )
}
