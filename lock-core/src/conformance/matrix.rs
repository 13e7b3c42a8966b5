//! [`Matrix`]: the exam of the exam. Every case on every broken store.

use super::broken::{Broken, Flaw};
use super::{Case, cases};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic;
use std::sync::{Arc, Once};
use std::thread;

/// The name of threads whose panics are the point, and not printed.
const QUIET: &str = "quiet exam";

/// How many cases may be looked at once more. More than that are no accident.
const MOST_AGAIN: usize = 3;

/// What came of every case on every flaw, and on the same store without one.
#[derive(Debug)]
pub struct Matrix {
    /// With what each pair failed; those that passed are not in it.
    failed: HashMap<(&'static str, Option<Flaw>), String>,
}

impl Matrix {
    /// Lets every broken store, and the sound one, sit every case, so many at a time. They mostly sleep, so dozens at a
    /// time are well.
    #[must_use]
    pub fn examine(at_a_time: usize) -> Self {
        keep_quiet();
        let columns = || std::iter::once(None).chain(Flaw::ALL.iter().copied().map(Some));
        // The last is taken first: the sound store sits its exam under full load.
        let pairs: Vec<_> =
            columns().rev().flat_map(|flaw| cases().iter().map(move |case| (case, flaw))).collect();
        let (pairs, failed) = (Mutex::new(pairs), Mutex::new(HashMap::new()));
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
        let mut failed = failed.into_inner();
        // Among so many others a lease may have run out, or somebody come too late to meet a flaw: once more, alone. But
        // what that excuses is the machine's doing, and rare.
        let wrong = |case: &&Case| {
            failed.contains_key(&(case.name, None))
                || !failed.contains_key(&(case.name, Some(case.catches)))
        };
        let again: Vec<_> = cases().iter().filter(wrong).collect();
        for case in again.into_iter().take(MOST_AGAIN) {
            println!("{} sits again: {:?}", case.name, failed.get(&(case.name, None)));
            for flaw in [None, Some(case.catches)] {
                match check(case, flaw) {
                    Ok(()) => failed.remove(&(case.name, flaw)),
                    Err(message) => failed.insert((case.name, flaw), message),
                };
            }
        }
        Self { failed }
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
            if let Some(message) = self.failed.get(&(case.name, None)) {
                complaints.push(format!("the sound store failed {}: {message}", case.name));
            }
            if !self.catches(case, case.catches) {
                complaints.push(format!("{} does not catch {:?}", case.name, case.catches));
            }
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

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").replace('\n', " ")
}

/// Keeps the panics of quiet threads off the terminal; those of all others are printed as before.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(QUIET) {
                previous(info);
            }
        }));
    });
}
