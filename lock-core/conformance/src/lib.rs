//! The conformance suite: the tests of every implementation of a [`Backend`](lock_core::Backend).
//!
//! The crate of a store runs the suite in a few lines of an integration test:
//!
//! ```
//! use lock_conformance::{NEEDS_REPLICAS, Seen, Subject};
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
//!     lock_conformance::conformance_tests!(super::start());
//! }
//! # fn main() { lock_conformance::run_case("dropped_guard_releases", start()) }
//! ```
//!
//! A case tests one promise. It panics if the promise is broken, and has a bound in time, so that
//! it fails on a store that hangs. It runs on the subject's [clock](Subject::clock): real, or
//! [virtual](VirtualTime) if the store is in this process. All times are multiplied by
//! `LOCK_TEST_SCALE`, for slow machines.
//!
//! Some cases call the backend directly and test its contract ([`backend`](lock_core::backend));
//! the others go through the engine and test what a program sees. The cases themselves are tested
//! on [`Mutant`], a store with one deliberate defect, its [`Mutation`]: [`Matrix::complaints`]
//! names each case that does not fail on the mutation that it must catch.

#![forbid(unsafe_code)]

mod cases;
mod exclusions;
mod faulty;
mod fixture;
mod lateness;
mod matrix;
mod mutant;
mod scale;
mod subject;
mod table;
mod violation;
mod virtual_time;

pub use exclusions::{
    NEEDS_A_LIST_OF_REPLICAS, NEEDS_A_QUEUE, NEEDS_ADMIN, NEEDS_ALL_KINDS, NEEDS_AN_OWNER,
    NEEDS_NOTIFICATION, NEEDS_REPLICAS, NEEDS_TOKENS, SINGLE_STORE_ONLY,
};
pub use lateness::{
    Late, Lateness, forget_process, late, note_excuse, retry_if_late, retry_if_late_beyond,
    watch_process, with_lateness,
};
pub use matrix::{Matrix, Pairs};
pub use mutant::{Mutant, Mutation};
pub use scale::scaled;
pub use subject::{ReplicaSet, Seen, Subject};
pub use violation::{Violation, violated, violated_unless};
pub use virtual_time::VirtualTime;

use fixture::CaseContext;
use lock_core::{Signal, Woken};
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

/// The test of one promise.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    catches: Mutation,
    is_core: bool,
    check: fn(&dyn Subject),
}

/// The bound on a case, in milliseconds before scaling. The longest case takes about three seconds.
const BOUND: u64 = 20_000;

impl Case {
    /// Returns the name of the case.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the mutation that the case must catch.
    #[must_use]
    pub fn catches(&self) -> Mutation {
        self.catches
    }

    /// Returns whether this is a core case. The core cases together catch every mutation. The core
    /// cases that [need no replicas](Self::needs_replicas) catch every mutation of a store without
    /// replicas.
    #[must_use]
    pub fn is_core(&self) -> bool {
        self.is_core
    }

    /// Returns whether the case needs a store with replicas.
    #[must_use]
    pub fn needs_replicas(&self) -> bool {
        NEEDS_REPLICAS.iter().any(|(name, _)| *name == self.name)
    }

    /// Returns whether the case needs a store with all kinds of locks.
    #[must_use]
    pub fn needs_all_kinds(&self) -> bool {
        let mut needing = NEEDS_ALL_KINDS.iter().chain(NEEDS_A_QUEUE);
        needing.any(|(name, _)| *name == self.name)
    }

    /// Runs this case on `subject`. In real time, runs it again if it is [late](retry_if_late) on
    /// an overloaded machine.
    ///
    /// # Panics
    ///
    /// If the promise is broken, or not kept in time.
    pub fn run(&self, subject: Arc<dyn Subject>) {
        let run = || self.run_once(Arc::clone(&subject));
        if VirtualTime::is_of(&subject.clock()) {
            // Load does not delay virtual time.
            run();
        } else {
            retry_if_late(run);
        }
    }

    /// Runs this case without a retry, for a case that is expected to fail.
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

    /// Runs this case on a thread that is abandoned when the bound passes.
    ///
    /// # Errors
    ///
    /// The payload of the panic, or [`Late`] if the case has not ended when the bound passes.
    fn check(&self, subject: Arc<dyn Subject>, thread: &str) -> Result<(), Box<dyn Any + Send>> {
        let (ended, result) = (Arc::new(Signal::new()), Arc::new(Mutex::new(None)));
        let (clock, check) = (subject.clock(), self.check);
        let case = {
            let (ended, result, clock) =
                (Arc::clone(&ended), Arc::clone(&result), Arc::clone(&clock));
            move || {
                fixture::enter(CaseContext {
                    clock,
                    tags: subject.has_tags(),
                });
                // A panic drops the closure with its reference to the subject. If that is the last
                // reference, the subject's `drop` sees that the case failed.
                let outcome = catch_unwind(AssertUnwindSafe(move || check(subject.as_ref())));
                *result.lock() = Some(outcome);
                ended.raise();
            }
        };
        let spawned = thread::Builder::new().name(thread.to_owned()).spawn(case);
        spawned.expect("a thread can be started");
        let bound = fixture::ms(BOUND);
        // In virtual time, the clock jumps to the bound at once if the case deadlocks.
        let _woken: Woken = clock.wait(&ended, clock.now() + bound);
        let result = result.lock().take();
        let late = || Late::after(bound, format!("it did not end within {bound:?}"));
        result.unwrap_or_else(|| Err(Box::new(late())))
    }
}

/// Returns all cases.
#[must_use]
pub fn cases() -> &'static [Case] {
    const ALL: &[Case] = crate::__conformance_table! { __conformance_list () };
    ALL
}

/// Runs one case on `subject`, as [`Case::run`] does. A case that the subject
/// [cannot](Subject::cannot) run is printed and skipped.
///
/// # Panics
///
/// If the promise is broken, or not kept in time; if the suite has no case of this name, or no case
/// of a name in [`Subject::cannot`].
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
    // If the case fails, its panic drops the subject, whose `drop` sees the failure.
    case.run(Arc::new(subject));
}

/// Returns the message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<Late>().map(Late::to_string));
    let text = text.or_else(|| panic.downcast_ref::<Violation>().map(Violation::to_string));
    text.unwrap_or_else(|| "a panic without words".to_owned())
        .replace('\n', " ")
}
