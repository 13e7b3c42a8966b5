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

/// The rounds for cases that came out wrong: how many sit at a time, and of how many that may be the machine's doing. Where
/// there are more, they stay wrong.
const AGAIN: [(usize, usize); 3] = [(8, 72), (1, 12), (1, 12)];

/// What came of every case on every flaw, and on the same store without one.
#[derive(Debug)]
pub struct Matrix {
    /// With what each pair failed; those that passed are not in it.
    failed: HashMap<(&'static str, Option<Flaw>), String>,
}

impl Matrix {
    /// Lets every broken store, and the sound one, sit every case, so many at a time. They mostly sleep, so dozens at a
    /// time are well.
    ///
    /// Where a machine stands still for a moment, leases run out under all that sit just then, or they come too late to meet
    /// their flaw. So what came out wrong sits again among fewer, and at last with none beside it, unless it is too much.
    #[must_use]
    pub fn examine(at_a_time: usize) -> Self {
        keep_quiet();
        let columns = || std::iter::once(None).chain(Flaw::ALL.iter().copied().map(Some));
        let mut matrix = Self { failed: HashMap::new() };
        // The last is taken first: the sound store sits its exam under full load.
        let all = columns().rev().flat_map(|flaw| cases().iter().map(move |case| (case, flaw)));
        matrix.sit(all.collect(), at_a_time);
        for (at_a_time, most) in AGAIN {
            let wrong: Vec<_> = cases().iter().filter(|case| matrix.is_wrong(case)).collect();
            if wrong.len() > most {
                break;
            }
            for complaint in wrong.iter().flat_map(|case| matrix.complaints_about(case)) {
                println!("once more, {at_a_time} at a time: {complaint}");
            }
            let pairs = |case: &'static Case| [(case, None), (case, Some(case.catches))];
            matrix.sit(wrong.into_iter().flat_map(pairs).collect(), at_a_time);
        }
        matrix
    }

    /// Lets these sit, so many at a time.
    fn sit(&mut self, pairs: Vec<(&'static Case, Option<Flaw>)>, at_a_time: usize) {
        let (pairs, failed) = (Mutex::new(pairs), Mutex::new(&mut self.failed));
        thread::scope(|scope| {
            for _ in 0..at_a_time.max(1) {
                scope.spawn(|| {
                    loop {
                        let Some((case, flaw)) = pairs.lock().pop() else { return };
                        match check(case, flaw) {
                            Ok(()) => failed.lock().remove(&(case.name, flaw)),
                            Err(message) => failed.lock().insert((case.name, flaw), message),
                        };
                    }
                });
            }
        });
    }

    fn is_wrong(&self, case: &Case) -> bool {
        self.complaints_about(case).next().is_some()
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
