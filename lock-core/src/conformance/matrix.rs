//! [`Matrix`]: the exam of the exam. Every case on every broken store.

use super::broken::{Broken, Flaw};
use super::{Case, cases, message_of};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::panic;
use std::sync::{Arc, Once};
use std::thread;

/// The name of threads whose panics are the point, and not printed.
const QUIET: &str = "quiet exam";

/// What came of every case on every flaw, and on the same store without one.
#[derive(Debug)]
pub struct Matrix {
    /// With what each pair failed; those that passed are not in it.
    failed: HashMap<(&'static str, Option<Flaw>), String>,
}

impl Matrix {
    /// Runs each case on the flaw that it exists for, and on the sound store, so many at a time.
    #[must_use]
    pub fn examine(at_a_time: usize) -> Self {
        Self::of(at_a_time, |case| vec![None, Some(case.catches)])
    }

    /// Runs every case on every flaw, and on the sound store, so many at a time.
    #[must_use]
    pub fn examine_all(at_a_time: usize) -> Self {
        let all: Vec<_> = [None].into_iter().chain(Flaw::ALL.iter().copied().map(Some)).collect();
        Self::of(at_a_time, |_| all.clone())
    }

    fn of(at_a_time: usize, flaws: impl Fn(&Case) -> Vec<Option<Flaw>>) -> Self {
        keep_quiet();
        let of_case = |case| flaws(case).into_iter().map(move |flaw| (case, flaw));
        let pairs = Mutex::new(cases().iter().flat_map(of_case).collect::<Vec<_>>());
        let failed = Mutex::new(HashMap::new());
        thread::scope(|scope| {
            for _ in 0..at_a_time.max(1) {
                scope.spawn(|| {
                    loop {
                        let Some((case, flaw)) = pairs.lock().pop() else { return };
                        if let Err(message) = check(case, flaw) {
                            failed.lock().insert((case.name, flaw), message);
                        }
                    }
                });
            }
        });
        Self { failed: failed.into_inner() }
    }

    /// That the sound store failed this case, and that the store with its flaw did not.
    fn complaints_about(&self, case: &Case) -> impl Iterator<Item = String> {
        let message = self.failed.get(&(case.name, None));
        let failed =
            message.map(|message| format!("the sound store failed {}: {message}", case.name));
        let missed = (!self.catches(case, case.catches))
            .then(|| format!("{} does not catch {:?}", case.name, case.catches));
        failed.into_iter().chain(missed)
    }

    /// Whether this case failed on this flaw.
    #[must_use]
    pub fn catches(&self, case: &Case, flaw: Flaw) -> bool {
        self.failed.contains_key(&(case.name, Some(flaw)))
    }

    /// What is wrong with the exam; nothing if each case fails on the flaw that it names, every flaw is caught, and the
    /// sound store passes.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for case in cases() {
            complaints.extend(self.complaints_about(case));
            if !Flaw::ALL.iter().any(|flaw| self.catches(case, *flaw)) {
                complaints.push(format!("{} catches nothing", case.name));
            }
        }
        for flaw in Flaw::ALL {
            if !cases().iter().any(|case| self.catches(case, *flaw)) {
                complaints.push(format!("nothing catches {flaw:?}"));
            }
        }
        complaints
    }

    /// With what each case failed on the flaw that it names.
    pub fn reasons(&self) -> impl Iterator<Item = String> {
        cases().iter().filter_map(|case| {
            let message = self.failed.get(&(case.name, Some(case.catches)))?;
            Some(format!("{} on {:?}: {message}", case.name, case.catches))
        })
    }
}

/// One line for each case, one column for each flaw: `X` where it failed on the flaw that it names, `x` where on another.
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = cases().iter().map(|case| case.name.len()).max().unwrap_or(0);
        for (number, flaw) in Flaw::ALL.iter().enumerate() {
            writeln!(f, "{:>3} {flaw:?}", number + 1)?;
        }
        for digit in [10, 1] {
            let numbers = 1..=Flaw::ALL.len();
            let digits: String =
                numbers.map(|n| char::from(b'0' + (n / digit % 10) as u8)).collect();
            writeln!(f, "{:width$} {digits}", "")?;
        }
        for case in cases() {
            let marks: String = Flaw::ALL
                .iter()
                .map(|&flaw| match self.catches(case, flaw) {
                    true if flaw == case.catches => 'X',
                    true => 'x',
                    false => '.',
                })
                .collect();
            writeln!(f, "{:width$} {marks}", case.name)?;
        }
        Ok(())
    }
}

fn check(case: &Case, flaw: Option<Flaw>) -> Result<(), String> {
    let subject = flaw.map_or_else(Broken::sound, Broken::new);
    case.check(Arc::new(subject), QUIET).map_err(|panic| message_of(panic.as_ref()))
}

/// Whether this thread's panics are the point.
pub(super) fn is_quiet() -> bool {
    thread::current().name() == Some(QUIET)
}

/// Keeps the panics of quiet threads off the terminal; those of all others are printed as before.
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
