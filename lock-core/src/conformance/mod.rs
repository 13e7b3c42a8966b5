//! The conformance suite: the tests of every implementation of a [`Backend`](crate::Backend).
//!
//! A store runs it in ten lines, in an integration test of its own crate:
//!
//! ```
//! use lock_core::conformance::{NEEDS_REPLICAS, Seen, Subject};
//! use lock_core::{Backend, Context, LockName, MemoryBackend, SystemClock};
//! use std::sync::Arc;
//!
//! struct Memory(MemoryBackend);
//!
//! impl Subject for Memory {
//!     fn name(&self) -> String { "memory".to_owned() }
//!     fn backend(&self, _: &Context) -> Arc<dyn Backend> { Arc::new(self.0.clone()) }
//!     fn probe(&self, lock: &LockName) -> Seen { Seen::of(&self.0, lock) }
//!     fn lose(&self, lock: &LockName) { self.0.lose(lock) }
//!     fn cannot(&self) -> &[(&str, &str)] { NEEDS_REPLICAS }
//! }
//!
//! fn start() -> Memory { Memory(MemoryBackend::new(Arc::new(SystemClock))) }
//!
//! mod conformance {
//!     lock_core::conformance_tests!(super::start());
//! }
//! # fn main() { lock_core::conformance::run_case("dropped_guard_releases", start()) }
//! ```
//!
//! A case is one promise. It panics when the promise is broken, and it is bounded in time: on a
//! store that hangs it fails. Its time is that of the subject's [clock](Subject::clock): real, or
//! [virtual](VirtualTime) where the store lives in this process. Every time is multiplied with
//! `DISTLOCK_TEST_SCALE`, for slow machines.
//!
//! Some cases ask the backend directly for what its contract says ([`backend`](crate::backend));
//! the others go through the engine, and ask for what a program sees. What every case is worth is
//! shown by [`Mutant`], a store with one [`Mutation`] at a time: [`Matrix::run`] lets each case
//! fail on the mutation that it exists for.

mod cases;
mod faulty;
mod fixture;
mod lateness;
mod matrix;
mod mutant;
mod owner;
mod replicas;
mod scale;
mod single;
mod subject;
mod table;
mod tokens;
mod violation;
mod virtual_time;

pub use lateness::{
    Late, Lateness, forget_process, late, late_after, note_excuse, retry_if_late,
    retry_if_late_beyond, watch_process, with_lateness,
};
pub use matrix::{Matrix, Pairs};
pub use mutant::{Mutant, Mutation};
pub use owner::NEEDS_AN_OWNER;
pub use replicas::{NEEDS_A_LIST_OF_REPLICAS, NEEDS_REPLICAS, ReplicaSet};
pub use scale::scaled;
pub use single::SINGLE_STORE_ONLY;
pub use subject::{Seen, Subject};
pub use tokens::NEEDS_TOKENS;
pub use violation::{Violation, violated, violated_unless};
pub use virtual_time::VirtualTime;

use crate::clock::{Signal, Woken};
use fixture::World;
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

/// One promise.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    catches: Mutation,
    is_core: bool,
    check: fn(&dyn Subject),
}

/// The longest that a case may take, in milliseconds before the scale. The longest takes about
/// three seconds.
const BOUND: u64 = 20_000;

impl Case {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The mutation that it exists for.
    #[must_use]
    pub fn catches(&self) -> Mutation {
        self.catches
    }

    /// Whether it is one of the few that catch every mutation together: every mutation of a store
    /// without replicas those that [need none](Self::needs_replicas), and every mutation in dealing
    /// with replicas the others.
    #[must_use]
    pub fn is_core(&self) -> bool {
        self.is_core
    }

    /// Whether only a store with replicas can run it.
    #[must_use]
    pub fn needs_replicas(&self) -> bool {
        NEEDS_REPLICAS.iter().any(|(name, _)| *name == self.name)
    }

    /// Runs this case on `subject`, and once more if it is [late](retry_if_late) on a machine that
    /// has no time for it.
    ///
    /// # Panics
    ///
    /// If the promise is broken, or not kept in time.
    pub fn run(&self, subject: Arc<dyn Subject>) {
        let run = || self.run_once(Arc::clone(&subject));
        if VirtualTime::is_of(&subject.clock()) {
            // No load of the machine makes it late.
            run();
        } else {
            retry_if_late(run);
        }
    }

    /// The same without a second chance, for a case that is expected to fail.
    ///
    /// # Panics
    ///
    /// If the promise is broken, or not kept in time.
    pub fn run_once(&self, subject: Arc<dyn Subject>) {
        if let Err(panic) = self.check(Arc::clone(&subject), self.name) {
            let message = message_of(panic.as_ref());
            println!("{} failed {}: {message}", subject.name(), self.name);
            resume_unwind(panic);
        }
    }

    /// The same, as a result, on a thread that is left alone when the time is up.
    ///
    /// # Errors
    ///
    /// What it panicked with.
    fn check(&self, subject: Arc<dyn Subject>, thread: &str) -> Result<(), Box<dyn Any + Send>> {
        let (ended, result) = (Arc::new(Signal::new()), Arc::new(Mutex::new(None)));
        let (clock, check) = (subject.clock(), self.check);
        let case = {
            let (ended, result, clock) =
                (Arc::clone(&ended), Arc::clone(&result), Arc::clone(&clock));
            move || {
                fixture::enter(World { clock, tags: subject.has_tags() });
                // The subject goes with the panic, so that what it owns can see that the case has
                // failed.
                let outcome = catch_unwind(AssertUnwindSafe(move || check(subject.as_ref())));
                *result.lock() = Some(outcome);
                ended.raise();
            }
        };
        let spawned = thread::Builder::new().name(thread.to_owned()).spawn(case);
        spawned.expect("a thread can be started");
        let bound = fixture::ms(BOUND);
        // In virtual time, a case in which every thread waits for another ends here at once.
        let _woken: Woken = clock.wait(&ended, clock.now() + bound);
        let result = result.lock().take();
        let late = || Late::after(bound, format!("it did not end within {bound:?}"));
        result.unwrap_or_else(|| Err(Box::new(late())))
    }
}

/// All cases.
#[must_use]
pub fn cases() -> &'static [Case] {
    const ALL: &[Case] = crate::__conformance_table! { __conformance_list () };
    ALL
}

/// Runs one case on `subject`, and once more if it is [late](retry_if_late) on a machine that has
/// no time for it. A case that the subject says it [cannot](Subject::cannot) run is printed and
/// left out.
///
/// # Panics
///
/// If the promise is broken, or not kept in time; if there is no such case, here or among those
/// that it cannot run.
pub fn run_case(case: &str, subject: impl Subject + 'static) {
    let find = |name: &str| {
        let found = cases().iter().find(|case| case.name == name);
        found.unwrap_or_else(|| panic!("there is no case `{name}`"))
    };
    let case = find(case);
    for (cannot, why) in subject.cannot() {
        if find(cannot).name == case.name {
            println!("{} cannot run {cannot}: {why}", subject.name());
            return;
        }
    }
    // Dropped in the panic that ends this, so that what it owns can see that the case has failed.
    case.run(Arc::new(subject));
}

/// What was said in a panic.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<Late>().map(Late::to_string));
    let text = text.or_else(|| panic.downcast_ref::<Violation>().map(Violation::to_string));
    text.unwrap_or_else(|| "a panic without words".to_owned()).replace('\n', " ")
}
