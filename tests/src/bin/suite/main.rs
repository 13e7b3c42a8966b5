//! Runs the whole suite. `tests/run.sh` starts this program once a toolchain and a server are
//! installed.
//!
//! Everything is built first, by one command. Then the phases run one after the other, and the
//! lanes of a phase concurrently. Background jobs run meanwhile at a lower priority: the static
//! checks and, in the default tier, the tests on virtual time. Tests that count turns, threads or
//! processor time run last, alone.

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
    /// Runs everything: all mounts of the conformance suite, all pairs of its mutants, the tests
    /// with all other libraries in all versions, and the long tests. Installs the tools that build
    /// those libraries.
    #[arg(long)]
    all: bool,

    /// Repeats what `--all` runs, with other random seeds, for this long (as in `2h`), or until
    /// something fails.
    #[arg(long, value_name = "DURATION", value_parser = Config::parse_duration)]
    soak: Option<Duration>,

    /// Runs only the jobs with these names, as in `cluster,sentinel`. A text that is no job's name
    /// selects all jobs whose names contain it.
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
        // Each round of a soak explores other schedules.
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

/// Runs all phases but the last together with the background jobs, and then the last phase alone.
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
