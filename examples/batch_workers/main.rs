//! The overselling problem: many workers sell numbered items. Each worker reads the last number
//! from a file, sells the next one, and writes it back. Under a lock no number is sold twice;
//! without the lock some are.
//!
//! ```sh
//! cargo run --release --example batch_workers              # eight threads, in this process
//! cargo run --release --example batch_workers -- --unsafe  # the same without the lock: exit 1
//! cargo run --release --example batch_workers -- --url redis://127.0.0.1:6379 --processes 4
//! ```
//!
//! Ctrl-C ends the run in order: workers that wait for the lock wake at once, in every process, and
//! the summary checks what was sold until then.
//!
//! Several runs, and other programs, may sell from one file: give all of them the same `--counter`
//! and `--name`, and the same store (`--url`), which must not be memory.
//!
//! Exit codes: 0 exact, 1 sold twice or counted wrong, 130 stopped by Ctrl-C and exact so far, 69
//! the store cannot be reached, 78 an argument is wrong, 75 the lock was lost, 70 anything else.
//!
//! The lock is used in `worker.rs`, in about ten lines. Of the other files, `counter.rs` reads and
//! writes the counter, `report.rs` has the workers' reports, `processes.rs` starts this program
//! several times, and `proof.rs` checks that nothing was sold twice.

#[path = "../shared/mod.rs"]
mod shared;

mod counter;
mod processes;
mod proof;
mod report;
mod worker;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use counter::Counter;
use distlock::time::{Clock, SystemClock};
use distlock::{Config, Interrupt};
use indicatif::{ProgressBar, ProgressStyle};
use proof::{Proof, Run};
use report::Tally;
use shared::{Trouble, exit};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Sells numbered items from many threads and processes, and proves that none was sold twice.
#[derive(Clone, Parser)]
#[command(name = "batch_workers")]
struct Arguments {
    /// The store that the lock lives in
    #[arg(long, default_value = "memory://")]
    url: String,
    /// What the lock is called
    #[arg(long, default_value = "batch_workers")]
    name: String,
    /// Threads in each process
    #[arg(long, value_name = "NUMBER", default_value = "8", value_parser = positive())]
    workers: usize,
    /// Processes; more than one need a store that they share
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = positive())]
    processes: usize,
    /// Items to sell, by all of them together
    #[arg(long, value_name = "NUMBER", default_value = "2000", value_parser = positive())]
    jobs: usize,
    /// The file with the number that was sold last; made if there is none [default: one of our own,
    /// removed at the end]
    #[arg(long, value_name = "FILE")]
    counter: Option<PathBuf>,
    /// Work without the lock
    #[arg(long = "unsafe")]
    without_lock: bool,
    /// One of several processes: reports to its parent, and stops when its standard input ends
    #[arg(long, hide = true, requires = "counter")]
    child: bool,
}

fn positive() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1_000_000)
}

fn main() -> ExitCode {
    shared::main(|arguments: Arguments| match arguments.child {
        true => processes::run_as_child(&arguments),
        false => run(&arguments),
    })
}

fn run(arguments: &Arguments) -> Result<u8, Trouble> {
    refuse_processes_without_shared_store(arguments)?;
    check_store(arguments)?;
    let stop = Interrupt::on_ctrl_c()?;
    let counter = Counter::open(arguments.counter.as_deref())?;
    let first = counter.first()?;
    let (clock, bar) = (SystemClock, progress_bar(arguments.jobs));
    let start = clock.now();

    let mut tally = Tally::default();
    let count = |report| {
        tally.add(report);
        bar.set_position(tally.sold());
    };
    let result = if arguments.processes == 1 {
        worker::run_all(arguments, counter.path(), &stop, count)
    } else {
        processes::run_all(arguments, counter.path(), &stop, count)
    };
    bar.finish_and_clear();
    tally.interrupted |= stop.is_fired(); // perhaps before any worker was there to notice
    let trouble = result.err().or_else(|| tally.take_trouble());

    // After a failure at the first job there is nothing to prove: only the error is printed.
    let mut code = 0;
    if trouble.is_none() || tally.sold() > 0 {
        let took = clock.now().since(start);
        let last = counter.settled().ok().flatten();
        let run = Run {
            jobs: arguments.jobs,
            first,
            last,
            took,
        };
        let proof = Proof::of(tally, &run, counter.is_ours());
        print(&heading(arguments), &proof)?;
        code = proof.exit_code();
    }
    trouble.map_or(Ok(code), Err)
}

/// Refuses several processes with a lock in memory: each process has its own memory, so the lock
/// would not exclude the other processes.
fn refuse_processes_without_shared_store(arguments: &Arguments) -> Result<(), Trouble> {
    let shares_a_lock = arguments.processes > 1 && !arguments.without_lock;
    if shares_a_lock && Config::from_url(&arguments.url)?.scheme() == "memory" {
        let what = format!(
            "{} processes cannot share a lock in memory: name a store with `--url`, as in `--url \
             redis://127.0.0.1:6379`, or give it `--workers` instead",
            arguments.processes
        );
        return Err(Trouble::new(exit::CONFIGURATION, what));
    }
    Ok(())
}

/// Reads from the store once, and fails if that fails. A worker's `lock` waits for a store that is
/// down, because it may come back; at the start a wrong URL is more likely.
fn check_store(arguments: &Arguments) -> Result<(), Trouble> {
    let lock = distlock::connect(&arguments.url)?.mutex(&arguments.name)?;
    if !arguments.without_lock {
        lock.is_locked()?;
    }
    Ok(())
}

/// Returns a progress bar that is drawn only on a terminal: in a log or a pipe it would be noise.
fn progress_bar(jobs: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "selling {bar:40} {pos} of {len}, about {eta} to go";
    let style = ProgressStyle::with_template(style).expect("a template that was tried out");
    ProgressBar::new(jobs as u64).with_style(style)
}

fn heading(arguments: &Arguments) -> String {
    let Arguments {
        workers,
        processes,
        name,
        ..
    } = arguments;
    let who = match (processes, workers) {
        (1, 1) => "1 worker".to_owned(),
        (1, _) => format!("{workers} workers"),
        _ => format!("{processes} processes with {workers} workers each"),
    };
    // The URL may have a password in it, so only its scheme is shown.
    let store = arguments.url.split(':').next().unwrap_or_default();
    match arguments.without_lock {
        false => format!("{who}, under the lock {name:?} ({store})"),
        true => format!("{who}, without a lock"),
    }
}

fn print(heading: &str, proof: &Proof) -> Result<(), Trouble> {
    writeln!(io::stdout().lock(), "{heading}\n\n{proof}").map_err(|error| {
        Trouble::new(
            exit::SOFTWARE,
            format_args!("standard output cannot be written: {error}"),
        )
    })
}
