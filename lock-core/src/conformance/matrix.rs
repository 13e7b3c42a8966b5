//! [`Matrix`]: the exam of the exam. Cases on broken stores.

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

/// Which cases run on which flaws. Each case that does runs on the sound store, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pairs {
    /// Every case on the flaw that it exists for.
    Decisive,
    /// The core cases that need no replicas on all flaws but those of replicas, and the others on those.
    Core,
    /// Every case on every flaw.
    All,
}

impl Pairs {
    /// The flaws, and the store without any, on which this case runs.
    fn of(self, case: &Case) -> impl Iterator<Item = Option<Flaw>> {
        let (own, is_core, needs_replicas) = (case.catches, case.is_core, case.needs_replicas());
        let is_wanted = move |flaw: &Flaw| match self {
            Self::Decisive => *flaw == own,
            // A case may catch flaws of replicas, and do without any.
            Self::Core if is_core => flaw.is_of_replicas() || !needs_replicas,
            Self::Core => false,
            Self::All => true,
        };
        let sound = (self != Self::Core || is_core).then_some(None);
        sound.into_iter().chain(Flaw::ALL.iter().copied().filter(is_wanted).map(Some))
    }
}

/// What came of cases on flaws, and on the same store without one.
#[derive(Debug)]
pub struct Matrix {
    /// With what each pair failed; those that passed are not in it.
    failed: HashMap<(&'static str, Option<Flaw>), String>,
    pairs: Pairs,
}

impl Matrix {
    /// Runs cases on flaws, so many at a time. All of it in virtual time: what comes out does not hang on the machine.
    #[must_use]
    pub fn run(pairs: Pairs, at_a_time: usize) -> Self {
        keep_quiet();
        let of_case = |case| pairs.of(case).map(move |flaw| (case, flaw));
        let run: Vec<_> = cases().iter().flat_map(of_case).collect();
        let (rest, failed) = (Mutex::new(run.iter()), Mutex::new(HashMap::new()));
        thread::scope(|scope| {
            for _ in 0..at_a_time.max(1) {
                scope.spawn(|| {
                    loop {
                        let Some((case, flaw)) = rest.lock().next().copied() else { return };
                        if let Err(message) = check(case, flaw) {
                            failed.lock().insert((case.name, flaw), message);
                        }
                    }
                });
            }
        });
        Self { failed: failed.into_inner(), pairs }
    }

    /// The flaws that none of these cases catches.
    #[must_use]
    pub fn missed_by(&self, by: impl Fn(&Case) -> bool) -> Vec<Flaw> {
        let is_missed = |flaw: &Flaw| {
            !cases().iter().filter(|case| by(case)).any(|case| self.catches(case, *flaw))
        };
        Flaw::ALL.iter().copied().filter(is_missed).collect()
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

    /// What is wrong with the exam; nothing if each case that was run fails on the flaw that it names, every flaw is caught,
    /// and the sound store passes.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let was_run = |case: &&Case| self.pairs != Pairs::Core || case.is_core;
        let of_cases = cases().iter().filter(was_run).flat_map(|case| self.complaints_about(case));
        let of_flaws =
            self.missed_by(|_| true).into_iter().map(|flaw| format!("nothing catches {flaw:?}"));
        of_cases.chain(of_flaws).collect()
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
