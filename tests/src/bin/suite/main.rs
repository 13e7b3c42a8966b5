//! Runs the whole suite: what `tests/run.sh` calls once a toolchain and a server are there.
//!
//! Everything is built first, in one go. Then the phases run one after the other, the jobs of a
//! phase beside each other; static checks and what runs on virtual time run behind them at a lower
//! priority. What counts turns, threads or processor time runs last, alone.

mod build;
mod job;
mod plan;
mod report;

use clap::Parser;
use distlock::Config;
use job::Priority;
use plan::{Plan, Tier};
use report::Report;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Runs the tests, the lints and the checks of the documentation.
#[derive(Parser)]
struct Arguments {
    /// Everything: all mounts of the conformance suite, all pairs of its mutants, all libraries and
    /// versions beside ours, and the long tests. Installs what a library is built with.
    #[arg(long)]
    all: bool,

    /// Repeats what `--all` runs, with other random seeds, for this long (as in `2h`), or until
    /// something fails.
    #[arg(long, value_name = "DURATION", value_parser = Config::parse_duration)]
    soak: Option<Duration>,

    /// Only the jobs with these names, or where a job has no such name those whose names contain
    /// it, as in `cluster,sentinel`.
    #[arg(long, value_name = "TEXT,..", value_delimiter = ',')]
    only: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let is_long = arguments.all || arguments.soak.is_some();
    let tier = if is_long { Tier::All } else { Tier::Default };
    let mut report = Report::start();
    let (outcome, binaries) = build::everything();
    report.add("build", vec![outcome]);
    let soak = arguments.soak.unwrap_or_default();
    while let Some(binaries) = &binaries {
        report.begin_round();
        // Each round of a soak tries other schedules.
        let first_seed = (soak > Duration::ZERO).then(|| fastrand::u64(..) >> 16);
        let mut plan = plan::plan(tier, binaries, first_seed);
        if !arguments.only.is_empty()
            && let Err(why) = plan.keep(&arguments.only)
        {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
        run(plan, &mut report);
        if report.elapsed() >= soak || report.has_failed() {
            break;
        }
    }
    report.finish(tier)
}

/// Runs the phases, and the background jobs behind them. The last phase has the machine for itself.
fn run(plan: Plan, report: &mut Report) {
    let Plan {
        background,
        mut phases,
    } = plan;
    let last = phases.pop();
    let is_foreground_over = AtomicBool::new(false);
    let background_priority = || match is_foreground_over.load(Ordering::Relaxed) {
        false => Priority::Low,
        true => Priority::Normal,
    };
    thread::scope(|scope| {
        let run = |lane| job::run_lane(lane, background_priority);
        let background: Vec<_> = background
            .into_iter()
            .map(|lane| scope.spawn(move || run(lane)))
            .collect();
        for phase in phases {
            report.add(phase.name, job::run_beside(phase.lanes));
        }
        is_foreground_over.store(true, Ordering::Relaxed);
        let outcomes = background
            .into_iter()
            .flat_map(|lane| lane.join().expect("no panic"));
        report.add("background", outcomes.collect());
    });
    if let Some(phase) = last {
        report.add(phase.name, job::run_beside(phase.lanes));
    }
}
