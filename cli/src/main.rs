//! `distlock`: runs commands under a distributed lock, and shows the holders of locks.

#![forbid(unsafe_code)]

// The command line and the texts of its help.
mod arguments;

// The subcommand `bench`.
mod bench;

// The subcommand `break`.
mod breaking;

// The subcommand `config check`.
mod config;

// The subcommand `doctor`.
mod doctor;

// Exit statuses and failures.
mod exit;

// The texts of `--help`, and the subcommand `hold`.
mod help;
mod hold;

// The process of `run` that becomes the command.
mod launch;

// The subcommand `list`.
mod list;

// The file of `run --metrics-file`.
mod metrics_file;

// Standard output and standard error.
mod output;

// The process group of a command, and its descendants.
mod processes;

// The subcommand `postgres init`.
mod postgres;
// The subcommand `serve`.
mod serve;
// The subcommands `quorum init` and `quorum status`.
mod quorum;

// Locks as rows of a table.
mod rows;

// The process of `run` that the user starts.
mod run;

// A terminal that is redrawn.
mod screen;

// Signals, blocked and waited for.
mod signals;

// The subcommands `status`, `check` and `wait`.
mod status;

// The URL of the store, and the client.
mod store;

// The process of `run` that holds the lock and starts the command.
mod supervisor;

// The lock that `run` and `hold` acquire.
mod taking;

// The foreground process group of the terminal, and the trial of `doctor`.
mod terminal;
mod trial;

// The subcommand `watch`.
mod watch;

use arguments::{Arguments, ConfigTask, PostgresTask, QuorumTask, Task};
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use exit::Failure;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = arguments::in_order(std::env::args_os());
    let ended = match Arguments::try_parse_from(&words) {
        Ok(arguments) => perform(arguments.task),
        Err(refusal) if refusal.use_stderr() => Err(refused(&refusal, words.get(1))),
        Err(help) => {
            let _closed_output = help.print();
            return ExitCode::SUCCESS;
        }
    };
    ended
        .unwrap_or_else(|failure| {
            output::report(&failure);
            failure.status
        })
        .into()
}

/// Runs a subcommand, and returns the exit status.
fn perform(task: Task) -> Result<u8, Failure> {
    match task {
        Task::Run(_) => run::run(),
        Task::Supervise { front, run } => supervisor::supervise(front, &run),
        Task::Launch {
            front,
            supervisor,
            command,
        } => launch::launch(front, supervisor, &command),
        Task::Check(arguments) => status::check(&arguments),
        Task::Wait(arguments) => status::wait(&arguments),
        Task::Status(arguments) => status::status(&arguments),
        Task::List(arguments) => list::list(&arguments),
        Task::Watch(arguments) => watch::watch(arguments),
        Task::Serve(arguments) => serve::serve(arguments),
        Task::Bench(arguments) => bench::bench(&arguments),
        Task::Break(arguments) => breaking::break_lock(&arguments),
        Task::Hold(arguments) => hold::hold(&arguments),
        Task::Doctor(arguments) => doctor::doctor(&arguments),
        Task::Config {
            task: ConfigTask::Check(arguments),
        } => config::check(&arguments),
        Task::Postgres {
            task: PostgresTask::Init(arguments),
        } => postgres::init(&arguments),
        Task::Quorum {
            task: QuorumTask::Init(arguments),
        } => quorum::init(&arguments),
        Task::Quorum {
            task: QuorumTask::Status(arguments),
        } => quorum::status(&arguments),
        Task::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut arguments::shown(), "distlock", &mut text);
            output::write(&text)
        }
        Task::Man { subcommand } => man(subcommand.as_deref()),
    }
}

/// Writes a man page.
fn man(subcommand: Option<&str>) -> Result<u8, Failure> {
    let mut all = arguments::shown();
    // Gives each subcommand its whole name, as in `distlock-run`.
    all.build();
    let page = match subcommand {
        None => all,
        Some(name) => {
            let found = all.find_subcommand(name).cloned();
            found.ok_or_else(|| {
                Failure::new(exit::USAGE, format_args!("there is no subcommand {name:?}"))
            })?
        }
    };
    let mut text = Vec::new();
    let rendered: io::Result<()> = clap_mangen::Man::new(page).render(&mut text);
    rendered.map_err(|error| Failure::system("the man page cannot be written", error))?;
    output::write(&text)
}

/// Shortens clap's error to its first paragraph and its tips, as one line.
fn refused(refusal: &clap::Error, subcommand: Option<&OsString>) -> Failure {
    let text = refusal.to_string();
    let first = text.split("\n\n").next().unwrap_or(&text);
    let what = match refusal.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a subcommand is missing",
        _ => first.trim_start_matches("error: "),
    };
    // A value behind `--` would be the command.
    let tips = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tip: "))
        .filter(|tip| !tip.starts_with("to pass"));
    let mut tips: String = tips.map(|tip| format!("; {tip}")).collect();
    if let Some(word) = command_without_dashes(refusal)
        && subcommand.is_some_and(|it| it == "run")
    {
        tips = format!("; the command stands behind `--`, as in `run NAME -- {word}`");
    }
    let is_missing = refusal.kind() == ErrorKind::MissingRequiredArgument;
    let what = match what {
        _ if is_missing && first.contains("--command") => {
            "the command is missing, as in `distlock run NAME -- COMMAND`"
        }
        what => what,
    };
    let all = arguments::shown();
    let subcommand = subcommand.and_then(|word| all.find_subcommand(word));
    let of_which = subcommand
        .map(|it| format!(" {}", it.get_name()))
        .unwrap_or_default();
    Failure::new(
        exit::USAGE,
        format_args!("{what}{tips}; `distlock{of_which} --help` shows what is accepted"),
    )
}

/// Returns the refused argument if it is no option, and so perhaps the command of `run`.
fn command_without_dashes(refusal: &clap::Error) -> Option<&str> {
    match refusal.get(ContextKind::InvalidArg)? {
        ContextValue::String(word)
            if refusal.kind() == ErrorKind::UnknownArgument && !word.starts_with('-') =>
        {
            Some(word)
        }
        _ => None,
    }
}
