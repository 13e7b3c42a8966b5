//! [`Mount`]: a store, and the cases of the conformance suite that run on it.

use super::format::NotApplicable;
use libtest_mimic::Trial;
use lock_conformance::{Case, Subject, cases};
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, LazyLock};
use std::thread;

/// Which cases run in the default tier. The long tier runs every case that applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// All cases: the first mount of its kind.
    Full,
    /// The core cases, which catch every mutant that the full suite catches.
    Core,
    /// No cases.
    None,
}

/// Opens the store for one case.
type Open = dyn Fn() -> Arc<dyn Subject> + Send + Sync;

/// A store that runs the conformance suite.
pub struct Mount {
    name: &'static str,
    extent: Extent,
    /// The cases that this store can run.
    applies: Box<dyn Fn(&Case) -> bool>,
    open: Arc<Open>,
}

impl Mount {
    /// Makes a mount that runs all cases except those in `cannot`.
    pub fn new(
        name: &'static str,
        extent: Extent,
        cannot: NotApplicable,
        open: impl Fn() -> Arc<dyn Subject> + Send + Sync + 'static,
    ) -> Self {
        let applies = move |case: &Case| cannot.iter().all(|(name, _)| *name != case.name());
        Self {
            name,
            extent,
            applies: Box::new(applies),
            open: Arc::new(open),
        }
    }

    /// Keeps only the cases in `list`.
    pub fn only(self, list: &'static [(&'static str, &'static str)]) -> Self {
        let applies = self.applies;
        let is_listed = |case: &Case| list.iter().any(|(name, _)| *name == case.name());
        Self {
            applies: Box::new(move |case| is_listed(case) && applies(case)),
            ..self
        }
    }

    /// Returns one test for each case that applies.
    pub fn trials(&self) -> Vec<Trial> {
        let applicable = cases().iter().filter(|case| (self.applies)(case));
        let trial = |case: &'static Case| {
            let open = Arc::clone(&self.open);
            let test = move || {
                case.run(open());
                Ok(())
            };
            let is_run = match self.extent {
                Extent::Full => true,
                Extent::Core => case.is_core(),
                Extent::None => false,
            };
            Trial::test(format!("{}::{}", self.name, case.name()), test).with_ignored_flag(!is_run)
        };
        applicable.map(trial).collect()
    }
}

/// Returns a test that each of these cases fails on this store, with one of these reasons if there
/// are any. A case that passes is left out for no reason.
pub fn left_out_cases_fail(
    name: &str,
    cases: &[(&'static str, &'static str)],
    reasons: &'static [&'static str],
    open: impl Fn() -> Arc<dyn Subject> + Send + Sync + 'static,
) -> Trial {
    let cases = cases.to_vec();
    let test = move || {
        thread::scope(|scope| {
            for (name, why) in &cases {
                let open = &open;
                let case = self::cases().iter().find(|case| case.name() == *name);
                let case = case.unwrap_or_else(|| panic!("there is no case {name}"));
                let fails = move || {
                    let outcome = catch_unwind(AssertUnwindSafe(|| case.run_once(open())));
                    let Err(panic) = outcome else {
                        panic!("{name} passes, left out: {why}")
                    };
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                    let text = text.unwrap_or_default();
                    let is_expected = reasons.iter().any(|reason| text.contains(reason));
                    assert!(
                        is_expected || reasons.is_empty(),
                        "{name} ({why}) fails by {text}"
                    );
                };
                let named = thread::Builder::new().name((*name).to_owned());
                named
                    .spawn_scoped(scope, fails)
                    .expect("a thread can be started");
            }
        });
        Ok(())
    };
    Trial::test(format!("{name}::left_out_cases_fail"), test)
}

/// Servers that the cases of one mount share. The first case that runs starts them.
pub struct Shared<T>(Arc<LazyLock<Arc<T>, Start<T>>>);

type Start<T> = Box<dyn FnOnce() -> Arc<T> + Send>;

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    pub fn new(start: impl FnOnce() -> T + Send + 'static) -> Self {
        Self(Arc::new(LazyLock::new(Box::new(|| Arc::new(start())))))
    }

    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0)
    }
}

/// Servers that one case at a time has for itself, because the case pauses or changes them. A case
/// that passes returns its servers for the next case. At most `most` are started.
pub struct Pool<T> {
    most: usize,
    start: fn() -> T,
    state: Mutex<Kept<T>>,
    returned: Condvar,
}

struct Kept<T> {
    idle: Vec<T>,
    started: usize,
}

/// Servers that were taken from a [`Pool`], and return to it when dropped, unless the case has
/// failed.
pub struct Borrowed<T> {
    pool: Arc<Pool<T>>,
    /// `Some` until the drop.
    taken: Option<T>,
}

impl<T> Pool<T> {
    pub fn new(most: usize, start: fn() -> T) -> Arc<Self> {
        let state = Mutex::new(Kept {
            idle: Vec::new(),
            started: 0,
        });
        Arc::new(Self {
            most,
            start,
            state,
            returned: Condvar::new(),
        })
    }

    /// Takes idle servers, or starts new ones; waits if as many as allowed are in use.
    pub fn take(self: &Arc<Self>) -> Borrowed<T> {
        let mut state = self.state.lock();
        loop {
            let idle = state.idle.pop();
            if idle.is_none() && state.started == self.most {
                self.returned.wait(&mut state);
                continue;
            }
            if idle.is_none() {
                state.started += 1;
            }
            drop(state);
            let taken = Some(idle.unwrap_or_else(|| self.start()));
            return Borrowed {
                pool: Arc::clone(self),
                taken,
            };
        }
    }
}

impl<T> Pool<T> {
    /// Starts servers. If that panics, another case may start some: otherwise it would wait for a
    /// return that never comes.
    fn start(&self) -> T {
        let started = catch_unwind(AssertUnwindSafe(self.start));
        started.unwrap_or_else(|panic| {
            self.state.lock().started -= 1;
            self.returned.notify_one();
            resume_unwind(panic)
        })
    }
}

impl<T> std::ops::Deref for Borrowed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.taken.as_ref().expect("it is there until the drop")
    }
}

impl<T> Drop for Borrowed<T> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        // A case that failed may have left its servers in any state.
        match self.taken.take() {
            Some(servers) if !thread::panicking() => state.idle.push(servers),
            _ => state.started -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}
