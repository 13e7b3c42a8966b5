//! [`Proof`]: checks whether a run was exact, and makes the summary.
//!
//! A run is exact if the following holds for the numbers that it sold, and for the number in the
//! file before (`first`) and after the run (`last`):
//!
//! - no number was sold twice, and all lie in `first + 1 ..= last`;
//! - in the order of the numbers, the fencing tokens grow strictly, if there are any;
//! - every job was done, unless Ctrl-C came, and found a number in the file;
//! - the number in the file rose by exactly the number of sales, if the file is the run's own. If
//!   the file is shared, other programs may have sold as well, so it rose by at least that much.
//!
//! Two runs on one file that use different locks, or none, can sell the same number without
//! noticing: each run knows only its own sales.

use super::report::{Sale, Tally};
use super::shared::exit;
use std::fmt;
use std::time::Duration;

/// The facts about a run besides its sales.
pub(crate) struct Run {
    pub(crate) jobs: usize,
    /// The number in the file before the first job.
    pub(crate) first: u64,
    /// The number in the file after the last job; `None` if the file holds no number any more.
    pub(crate) last: Option<u64>,
    pub(crate) took: Duration,
}

/// The summary of a run: its lines are `parts`, and each error is a sentence in `wrong`.
pub(crate) struct Proof {
    parts: Vec<(&'static str, String)>,
    wrong: Vec<String>,
    /// True if jobs were not done because of Ctrl-C.
    interrupted: bool,
}

impl Proof {
    /// Checks the sales of a run. `alone` is true if no other program sold from the file.
    pub(crate) fn of(mut tally: Tally, run: &Run, alone: bool) -> Self {
        tally.sales.sort_unstable();
        let done = tally.sales.len();
        let mut proof = Self {
            parts: Vec::new(),
            wrong: Vec::new(),
            interrupted: tally.interrupted && done < run.jobs,
        };
        proof.look_at_numbers(&tally, run);
        proof.look_at_file(done as u64, run, alone);
        proof.look_at_tokens(&tally.sales);
        let speed = done as f64 / run.took.as_secs_f64().max(f64::EPSILON);
        proof.say("took", format!("{:.1?}, {speed:.0} jobs/s", run.took));
        proof
    }

    /// Returns the exit code of the program. An error takes precedence over an interrupt.
    pub(crate) fn exit_code(&self) -> u8 {
        match (self.is_exact(), self.interrupted) {
            (false, _) => exit::NO,
            (true, true) => exit::INTERRUPTED,
            (true, false) => 0,
        }
    }

    fn is_exact(&self) -> bool {
        self.wrong.is_empty()
    }

    fn look_at_numbers(
        &mut self,
        Tally {
            sales, unreadable, ..
        }: &Tally,
        run: &Run,
    ) {
        let Run { jobs, first, .. } = *run;
        let last = run.last.unwrap_or(u64::MAX); // without one, that alone refutes it
        let done = sales.len();
        self.say(
            "sold",
            format!(
                "{done} of {jobs} jobs{}",
                range(sales.iter().map(|s| s.number))
            ),
        );
        let numbers = sales.chunk_by(|one, next| one.number == next.number);
        let (mut different, mut worst) = (0, &sales[..0]);
        for sold in numbers {
            different += 1;
            worst = if sold.len() > worst.len() {
                sold
            } else {
                worst
            };
        }
        if different == done {
            self.say("twice", "none".to_owned());
        } else {
            self.say("twice", format!("{done} sales of only {different} numbers"));
            self.refute(format!(
                "number {} was sold {} times",
                worst[0].number,
                worst.len()
            ));
        }
        if let Some(beyond) = sales
            .iter()
            .find(|sale| sale.number <= first || sale.number > last)
        {
            self.refute(format!(
                "number {} was sold, but the file went from {first} to {last}",
                beyond.number
            ));
        }
        if *unreadable > 0 {
            self.refute(format!("{unreadable} jobs found the file half written"));
        }
        if !self.interrupted && done + unreadable < jobs {
            self.refute(format!("{} jobs were not done", jobs - done - unreadable));
        }
    }

    fn look_at_file(&mut self, done: u64, run: &Run, alone: bool) {
        let Run {
            first,
            last: Some(last),
            ..
        } = *run
        else {
            self.say("counter", "has no number in it any more".to_owned());
            return self.refute("another program wrote into the counter".to_owned());
        };
        let Some(rise) = last.checked_sub(first) else {
            self.say("counter", format!("fell from {first} to {last}"));
            return self.refute("the counter fell".to_owned());
        };
        let mut rose = format!("rose by {rise}, from {first} to {last}");
        match rise.checked_sub(done) {
            Some(0) => {}
            Some(more) if !alone => rose = format!("{rose}: {more} were sold by others"),
            _ => self.refute(format!("the counter rose by {rise}, but {done} were sold")),
        }
        self.say("counter", rose);
    }

    fn look_at_tokens(&mut self, sales: &[Sale]) {
        let tokens: Option<Vec<u64>> = sales.iter().map(|sale| sale.token).collect();
        let Some(tokens) = tokens.filter(|tokens| !tokens.is_empty()) else {
            return self.say("tokens", "none".to_owned());
        };
        let range = range(tokens.iter().copied());
        match sales.windows(2).find(|pair| pair[0].token >= pair[1].token) {
            None => self.say("tokens", format!("grew with every sale{range}")),
            Some(pair) => {
                self.say("tokens", format!("did not grow{range}"));
                self.refute(format!(
                    "number {} has a smaller or equal token than {}",
                    pair[1].number, pair[0].number
                ));
            }
        }
    }

    fn say(&mut self, what: &'static str, how: String) {
        self.parts.push((what, how));
    }

    fn refute(&mut self, why: String) {
        self.wrong.push(why);
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, how) in &self.parts {
            writeln!(f, "  {what:<8} {how}")?;
        }
        match (self.is_exact(), self.interrupted) {
            (true, false) => write!(f, "\nExact: nothing was sold twice."),
            (true, true) => write!(f, "\nStopped early, and exact: nothing was sold twice."),
            (false, _) => write!(f, "\nNOT EXACT:\n- {}", self.wrong.join("\n- ")),
        }
    }
}

/// Returns `, smallest to largest`, or an empty text if there are no numbers.
fn range(numbers: impl Iterator<Item = u64> + Clone) -> String {
    match (numbers.clone().min(), numbers.max()) {
        (Some(smallest), Some(largest)) => format!(", {smallest} to {largest}"),
        _ => String::new(),
    }
}
