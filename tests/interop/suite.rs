//! [`Suite`]: the tests of a run, listed when the program starts. What `LOCK_TEST_TIER` leaves out
//! is listed as ignored.

use crate::built;
use crate::libraries::Library;
use distlock_tests::time::{Stopwatch, let_pass};
use libtest_mimic::{Completion, Trial};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The variable that names the tier: `default` (the same as unset) or `all`.
const TIER: &str = "LOCK_TEST_TIER";

/// How many tests run at a time, unless one of them measures. Most of them wait for the end of a
/// lease.
pub(crate) const AT_A_TIME: usize = 4;

/// How many of the slowest tests are named at the end.
const SLOWEST: usize = 10;

/// Which libraries a run tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tier {
    /// The newest Redisson and redis-py, where their languages are installed.
    Default,
    /// All libraries in all versions. A missing language is an error.
    All,
}

impl Tier {
    fn chosen() -> Self {
        match std::env::var(TIER).as_deref() {
            Err(_) | Ok("" | "default") => Self::Default,
            Ok("all") => Self::All,
            Ok(other) => panic!("{TIER}={other} is no tier: there are `default` and `all`"),
        }
    }
}

/// A function that tests one library, and its place in the sources.
pub(crate) struct Case<F = fn(&'static Library)> {
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    pub(crate) run: F,
}

/// The [`Case`] of a function in the same module. `tests/project/documents` finds tests by the name
/// of this macro.
macro_rules! case {
    ($name:ident) => {
        $crate::suite::Case {
            module: module_path!(),
            name: stringify!($name),
            run: $name as _,
        }
    };
}

pub(crate) use case;

/// How a test shares the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Permit {
    /// Together with others, up to [`AT_A_TIME`] tests at a time.
    Shared,
    /// Alone: its assertions are about latencies, shares of the lock, or how often it changes
    /// sides.
    Exclusive,
}

/// The tests of this run.
pub(crate) struct Suite {
    tier: Tier,
    /// By language: why its libraries are left out, if they are.
    absent: BTreeMap<&'static str, Option<String>>,
    tests: Vec<(Permit, Trial)>,
}

impl Suite {
    pub(crate) fn of_tier() -> Self {
        Self {
            tier: Tier::chosen(),
            absent: BTreeMap::new(),
            tests: Vec::new(),
        }
    }

    /// Adds a test of one library that runs together with others.
    pub(crate) fn shared(&mut self, library: &'static Library, case: Case) {
        self.add(place(case.module), Permit::Shared, library, case);
    }

    /// Adds a test of one library that measures, and so runs alone.
    pub(crate) fn exclusive(&mut self, library: &'static Library, case: Case) {
        self.add(place(case.module), Permit::Exclusive, library, case);
    }

    /// Adds a test for each of several libraries or versions: `module::case::library`.
    pub(crate) fn each(
        &mut self,
        permit: Permit,
        libraries: impl IntoIterator<Item = &'static Library>,
        case: Case,
    ) {
        for library in libraries {
            let name = format!("{}::{}::{}", place(case.module), case.name, library.id);
            self.push(name, permit, library, case.run);
        }
    }

    /// Adds a case that is mounted on many libraries: `place::library::case`.
    pub(crate) fn mounted(
        &mut self,
        place: &str,
        permit: Permit,
        library: &'static Library,
        case: Case,
    ) {
        self.add(&format!("{place}::{}", library.id), permit, library, case);
    }

    /// Adds a test that needs no library.
    pub(crate) fn alone(&mut self, case: Case<fn()>) {
        let name = format!("{}::{}", place(case.module), case.name);
        self.tests
            .push((Permit::Shared, trial(name, Permit::Shared, case.run)));
    }

    fn add(&mut self, place: &str, permit: Permit, library: &'static Library, case: Case) {
        self.push(format!("{place}::{}", case.name), permit, library, case.run);
    }

    fn push(
        &mut self,
        name: String,
        permit: Permit,
        library: &'static Library,
        run: fn(&'static Library),
    ) {
        let is_of_tier = self.tier == Tier::All || library.is_in_default_tier();
        let absence = if is_of_tier {
            self.absence(library)
        } else {
            None
        };
        let trial = match absence {
            // Ignored at run time, not by the flag, which `--include-ignored` overrides.
            Some(reason) => Trial::ignorable_test(name, || Ok(Completion::ignored_with(reason))),
            None => trial(name, permit, move || run(library)),
        };
        self.tests
            .push((permit, trial.with_ignored_flag(!is_of_tier)));
    }

    /// Returns why this run omits a library of its tier. Prints the reason, once for each language.
    fn absence(&mut self, library: &Library) -> Option<String> {
        let tier = self.tier;
        let reason = self.absent.entry(library.language).or_insert_with(|| {
            let reason = absence(tier, library);
            if let Some(reason) = &reason {
                say!("skipped: {reason}");
            }
            reason
        });
        reason.clone()
    }

    /// Returns all tests. Exclusive ones come last: otherwise the others would have to stop for
    /// each of them.
    pub(crate) fn into_trials(mut self) -> Vec<Trial> {
        self.tests.sort_by_key(|(permit, _)| *permit);
        self.tests.into_iter().map(|(_, trial)| trial).collect()
    }
}

fn absence(tier: Tier, library: &Library) -> Option<String> {
    let language = library.language;
    if built::is_skipped(language) {
        return Some(format!("{} names {language}", built::SKIP));
    }
    let may_be_absent = tier == Tier::Default && !library.is_built();
    (may_be_absent && !built::is_installed(language))
        .then(|| format!("{language} is not installed: see `has` in tests/interop.sh"))
}

/// Returns the path of a module as test names have it, without the crate.
fn place(module: &str) -> &str {
    module.split_once("::").map_or(module, |(_, place)| place)
}

/// How long each test took.
static TOOK: Mutex<Vec<(Duration, Permit, String)>> = Mutex::new(Vec::new());

fn trial(name: String, permit: Permit, run: impl Fn() + Send + 'static) -> Trial {
    let called = name.clone();
    Trial::test(name, move || {
        let _permit = PERMITS.acquire(permit);
        let _time = Timed {
            name: called,
            permit,
            since: Stopwatch::start(),
        };
        run();
        Ok(())
    })
}

/// Notes how long a test took, also one that fails.
struct Timed {
    name: String,
    permit: Permit,
    since: Stopwatch,
}

impl Drop for Timed {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        TOOK.lock().push((self.since.elapsed(), self.permit, name));
    }
}

/// Prints which tests took longest.
pub(crate) fn print_slowest() {
    let mut took = std::mem::take(&mut *TOOK.lock());
    took.sort_unstable_by(|one, other| other.cmp(one));
    let sum = |permit| -> Duration {
        took.iter()
            .filter(|it| it.1 == permit)
            .map(|(time, ..)| *time)
            .sum()
    };
    let [shared, alone] = [Permit::Shared, Permit::Exclusive].map(sum);
    say!(
        "tests with others took {shared:.1?} in all, those by themselves {alone:.1?}; the slowest:"
    );
    for (time, _, name) in took.iter().take(SLOWEST) {
        say!("{time:8.1?}  {name}");
    }
}

static PERMITS: Permits = Permits {
    state: Mutex::new(Granted::NONE),
    changed: Condvar::new(),
};

/// The permits of the tests that run now. A waiting exclusive test comes before all shared ones,
/// which could otherwise starve it.
struct Permits {
    state: Mutex<Granted>,
    changed: Condvar,
}

struct Granted {
    shared: usize,
    is_exclusive: bool,
    /// How many exclusive tests wait.
    waiting: usize,
}

impl Granted {
    const NONE: Self = Self {
        shared: 0,
        is_exclusive: false,
        waiting: 0,
    };
}

/// A permit that was granted, given back when it is dropped.
struct Held<'a> {
    of: &'a Permits,
    permit: Permit,
}

impl Permits {
    fn acquire(&self, permit: Permit) -> Held<'_> {
        let mut state = self.state.lock();
        match permit {
            Permit::Shared => {
                let is_closed =
                    |it: &mut Granted| it.is_exclusive || it.waiting > 0 || it.shared == AT_A_TIME;
                self.changed.wait_while(&mut state, is_closed);
                state.shared += 1;
            }
            Permit::Exclusive => {
                state.waiting += 1;
                self.changed
                    .wait_while(&mut state, |it| it.is_exclusive || it.shared > 0);
                state.waiting -= 1;
                state.is_exclusive = true;
            }
        }
        Held { of: self, permit }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        match self.permit {
            Permit::Shared => state.shared -= 1,
            Permit::Exclusive => state.is_exclusive = false,
        }
        self.of.changed.notify_all();
    }
}

pub(crate) fn mount(suite: &mut Suite) {
    suite.alone(case!(exclusive_test_gets_its_turn_and_runs_alone));
}

fn exclusive_test_gets_its_turn_and_runs_alone() {
    static OURS: Permits = Permits {
        state: Mutex::new(Granted::NONE),
        changed: Condvar::new(),
    };
    let (running, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        // More threads than may run at a time, so that shared tests wait all the time.
        for _ in 0..2 * AT_A_TIME {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let _permit = OURS.acquire(Permit::Shared);
                    let before = running.fetch_add(1, Ordering::SeqCst);
                    assert!(before < AT_A_TIME, "{before} ran already");
                    let_pass(Duration::from_millis(2));
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..10 {
            let _permit = OURS.acquire(Permit::Exclusive);
            assert_eq!(running.load(Ordering::SeqCst), 0);
            let_pass(Duration::from_millis(2));
            assert_eq!(running.load(Ordering::SeqCst), 0);
        }
        is_over.store(true, Ordering::SeqCst);
    });
}
