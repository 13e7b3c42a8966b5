//! [`Report`]: the results of a run: the table of phases, and the tests left out, repeated or
//! failed.

use crate::job::{Counts, Outcome};
use crate::plan::{Tier, excuses};
use lock_core::{Clock, Moment, SystemClock};
use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

/// The largest number of tests in a round that may be repeated because the machine was late.
const MOST_EXCUSES: usize = 3;

/// The results of all jobs.
pub(crate) struct Report {
    begun: Moment,
    /// The time at which the last finished phase ended.
    last: Moment,
    rows: Vec<(String, Duration, Counts)>,
    jobs: Vec<Outcome>,
    /// The number of excuses before this round.
    excused_before: usize,
}

impl Report {
    pub(crate) fn start() -> Self {
        let _none_yet = fs::remove_file(excuses());
        let begun = SystemClock.now();
        Self {
            begun,
            last: begun,
            rows: Vec::new(),
            jobs: Vec::new(),
            excused_before: 0,
        }
    }

    /// Begins a round, in which earlier excuses do not count towards the limit.
    pub(crate) fn begin_round(&mut self) {
        self.excused_before = self.excused().len();
    }

    pub(crate) fn elapsed(&self) -> Duration {
        SystemClock.now().since(self.begun)
    }

    pub(crate) fn has_failed(&self) -> bool {
        let excused = self.excused().len() - self.excused_before;
        self.jobs.iter().any(|job| !job.is_ok) || excused > MOST_EXCUSES
    }

    /// Adds a phase that has just ended.
    pub(crate) fn add(&mut self, phase: &str, jobs: Vec<Outcome>) {
        let now = SystemClock.now();
        self.rows
            .push((phase.to_owned(), now.since(self.last), sum(&jobs)));
        let job = |job: &Outcome| (format!("  {}", job.name), job.took, job.counts);
        self.rows.extend(jobs.iter().map(job));
        self.last = now;
        self.jobs.extend(jobs);
    }

    /// Returns a line for each test that was repeated, with the reason.
    fn excused(&self) -> Vec<String> {
        let lines = fs::read_to_string(excuses()).unwrap_or_default();
        lines.lines().map(str::to_owned).collect()
    }

    /// Prints the report. Returns failure if a job failed or too many tests were late.
    pub(crate) fn finish(self, tier: Tier) -> ExitCode {
        for job in self.jobs.iter().filter(|job| !job.is_ok) {
            println!("\n{}", job.complaint());
        }
        if tier == Tier::Default {
            self.print_left_out();
        }
        for job in self.jobs.iter().filter(|job| !job.notes.is_empty()) {
            println!("\n{}:", job.name);
            job.notes.iter().for_each(|note| println!("  {note}"));
        }
        let excused = self.excused();
        println!(
            "\nrepeated because the machine was late: {} (at most {MOST_EXCUSES} in a run)",
            excused.len()
        );
        excused.iter().for_each(|excuse| println!("  {excuse}"));
        println!(
            "\n{:<32} {:>8} {:>7} {:>7} {:>9}",
            "phase", "seconds", "passed", "failed", "left out"
        );
        for (name, took, counts) in &self.rows {
            let Counts {
                passed,
                failed,
                ignored,
            } = counts;
            println!(
                "{name:<32} {:>8.1} {passed:>7} {failed:>7} {ignored:>9}",
                took.as_secs_f64()
            );
        }
        let failed: Vec<_> = self
            .jobs
            .iter()
            .filter(|job| !job.is_ok)
            .map(|job| job.name.as_str())
            .collect();
        let elapsed = self.elapsed().as_secs_f64();
        match (failed.is_empty(), self.has_failed()) {
            (true, false) => println!("\nall passed in {elapsed:.0} s"),
            (true, true) => println!("\nFAILED after {elapsed:.0} s: too many tests were late"),
            (false, _) => println!("\nFAILED after {elapsed:.0} s: {}", failed.join(", ")),
        }
        let Counts {
            passed,
            failed,
            ignored,
        } = sum(&self.jobs);
        println!("{passed} passed, {failed} failed, {ignored} skipped");
        if self.has_failed() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }

    /// Prints the numbers of tests that only the long tier runs, by job and module.
    fn print_left_out(&self) {
        println!("\nleft out here, and run by `tests/run.sh --all`:");
        for job in self.jobs.iter().filter(|job| !job.left_out.is_empty()) {
            let mut modules = BTreeMap::<&str, u32>::new();
            for test in &job.left_out {
                let module = test
                    .rsplit_once("::")
                    .map_or(test.as_str(), |(module, _)| module);
                *modules.entry(module).or_default() += 1;
            }
            let modules = modules
                .iter()
                .map(|(module, count)| format!("{module} {count}"));
            println!("  {}: {}", job.name, modules.collect::<Vec<_>>().join(", "));
        }
    }
}

fn sum(jobs: &[Outcome]) -> Counts {
    jobs.iter()
        .fold(Counts::default(), |sum, Outcome { counts, .. }| Counts {
            passed: sum.passed + counts.passed,
            failed: sum.failed + counts.failed,
            ignored: sum.ignored + counts.ignored,
        })
}
