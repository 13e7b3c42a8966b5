//! [`Matrix`]: runs cases on mutants, to test the cases.

use super::mutant::{Mutant, Mutation};
use super::violation::{QUIET, is_quiet};
use super::{Case, cases, message_of};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::panic;
use std::sync::{Arc, Once};
use std::thread;

/// The selection of cases, and of the mutations on which they run. Each selected case also runs on
/// the store without a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pairs {
    /// Every case on the mutation that it must catch.
    Decisive,
    /// The core cases on all mutations, except that the core cases that need replicas run only on
    /// the mutations of replicas.
    Core,
    /// Every case on every mutation.
    All,
}

impl Pairs {
    /// Returns the mutations on which this case runs; `None` is the store without a mutation.
    fn of(self, case: &Case) -> impl Iterator<Item = Option<Mutation>> {
        let (own, is_core, needs_replicas) = (case.catches, case.is_core, case.needs_replicas());
        let is_wanted = move |mutation: &Mutation| match self {
            Self::Decisive => *mutation == own,
            // A case that needs no replicas may also catch mutations of replicas.
            Self::Core if is_core => mutation.is_of_replicas() || !needs_replicas,
            Self::Core => false,
            Self::All => true,
        };
        let sound = (self != Self::Core || is_core).then_some(None);
        sound
            .into_iter()
            .chain(Mutation::ALL.iter().copied().filter(is_wanted).map(Some))
    }
}

/// The results of cases on mutations, and on the store without a mutation.
#[derive(Debug)]
pub struct Matrix {
    /// The message of each pair that failed.
    failed: HashMap<(&'static str, Option<Mutation>), String>,
    pairs: Pairs,
}

impl Matrix {
    /// Runs cases on mutations, `at_a_time` in parallel. The cases run in virtual time, so that the
    /// result does not depend on the speed of the machine.
    #[must_use]
    pub fn run(pairs: Pairs, at_a_time: usize) -> Self {
        keep_quiet();
        let of_case = |case| pairs.of(case).map(move |mutation| (case, mutation));
        let run: Vec<_> = cases().iter().flat_map(of_case).collect();
        let (rest, failed) = (Mutex::new(run.iter()), Mutex::new(HashMap::new()));
        thread::scope(|scope| {
            for _ in 0..at_a_time.max(1) {
                scope.spawn(|| {
                    loop {
                        let Some((case, mutation)) = rest.lock().next().copied() else {
                            return;
                        };
                        if let Err(message) = check(case, mutation) {
                            failed.lock().insert((case.name, mutation), message);
                        }
                    }
                });
            }
        });
        Self {
            failed: failed.into_inner(),
            pairs,
        }
    }

    /// Returns the mutations that are caught by no case for which `by` returns `true`.
    #[must_use]
    pub fn missed_by(&self, by: impl Fn(&Case) -> bool) -> Vec<Mutation> {
        let is_missed = |mutation: &Mutation| {
            !cases()
                .iter()
                .filter(|case| by(case))
                .any(|case| self.catches(case, *mutation))
        };
        Mutation::ALL.iter().copied().filter(is_missed).collect()
    }

    /// Returns complaints if this case fails without a mutation, or passes with its own.
    fn complaints_about(&self, case: &Case) -> impl Iterator<Item = String> {
        let message = self.failed.get(&(case.name, None));
        let failed = message.map(|message| {
            format!(
                "the store without a mutation failed {}: {message}",
                case.name
            )
        });
        let missed = (!self.catches(case, case.catches))
            .then(|| format!("{} does not catch {:?}", case.name, case.catches));
        failed.into_iter().chain(missed)
    }

    /// Returns whether this case failed on this mutation.
    #[must_use]
    pub fn catches(&self, case: &Case, mutation: Mutation) -> bool {
        self.failed.contains_key(&(case.name, Some(mutation)))
    }

    /// Returns the defects of the suite: none if each case that ran fails on its mutation and
    /// passes on the store without a mutation, and every mutation is caught.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let was_run = |case: &&Case| self.pairs != Pairs::Core || case.is_core;
        let of_cases = cases()
            .iter()
            .filter(was_run)
            .flat_map(|case| self.complaints_about(case));
        let of_mutations = self
            .missed_by(|_| true)
            .into_iter()
            .map(|mutation| format!("nothing catches {mutation:?}"));
        of_cases.chain(of_mutations).collect()
    }

    /// Returns the message with which each case failed on its mutation.
    pub fn reasons(&self) -> impl Iterator<Item = String> {
        cases().iter().filter_map(|case| {
            let message = self.failed.get(&(case.name, Some(case.catches)))?;
            Some(format!("{} on {:?}: {message}", case.name, case.catches))
        })
    }
}

/// Prints one line for each case, with one column for each mutation: `X` if the case failed on its
/// own mutation, `x` if it failed on another mutation.
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = cases()
            .iter()
            .map(|case| case.name.len())
            .max()
            .unwrap_or(0);
        for (number, mutation) in Mutation::ALL.iter().enumerate() {
            writeln!(f, "{:>3} {mutation:?}", number + 1)?;
        }
        for digit in [10, 1] {
            let numbers = 1..=Mutation::ALL.len();
            let digits: String = numbers
                .map(|n| char::from(b'0' + (n / digit % 10) as u8))
                .collect();
            writeln!(f, "{:width$} {digits}", "")?;
        }
        for case in cases() {
            let marks: String = Mutation::ALL
                .iter()
                .map(|&mutation| match self.catches(case, mutation) {
                    true if mutation == case.catches => 'X',
                    true => 'x',
                    false => '.',
                })
                .collect();
            writeln!(f, "{:width$} {marks}", case.name)?;
        }
        Ok(())
    }
}

fn check(case: &Case, mutation: Option<Mutation>) -> Result<(), String> {
    let subject = mutation.map_or_else(Mutant::unmutated, Mutant::new);
    case.check(Arc::new(subject), QUIET)
        .map_err(|panic| message_of(panic.as_ref()))
}

/// Suppresses the printed panics of quiet threads.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !is_quiet() {
                previous(info);
            }
        }));
    });
}
