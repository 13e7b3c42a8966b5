//! The conformance suite: the exam for whoever writes a [`Backend`](crate::Backend).
//!
//! A store sits it in ten lines, in an integration test of its own crate:
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
//! # fn main() { lock_core::conformance::sit("releases_on_drop", start()) }
//! ```
//!
//! A case is one promise. It panics when the promise is broken, and it is bounded in time: on a store that hangs it
//! fails. Every time in it is real, and multiplied with `DISTLOCK_TEST_SCALE`, for slow machines.
//!
//! Some cases ask the backend directly for what its contract says ([`backend`](crate::backend)); the others go through
//! the engine, and ask for what a program sees. What every case is worth is shown by [`Broken`], a store with one
//! [`Flaw`] at a time: [`Matrix::examine`] lets each case fail on the flaw that it exists for.

mod broken;
mod cases;
mod desk;
mod fair;
mod matrix;
mod mischief;
mod owner;
mod replicas;
mod single;
mod subject;
mod table;
mod tokens;
mod virtual_time;

pub use broken::{Broken, Flaw};
pub use fair::{fairly, fairly_beyond, with_lateness};
pub use matrix::Matrix;
pub use owner::NEEDS_AN_OWNER;
pub use replicas::{NEEDS_A_LIST_OF_REPLICAS, NEEDS_REPLICAS, ReplicaSet};
pub use single::SINGLE_STORE_ONLY;
pub use subject::{Seen, Subject};
pub use tokens::NEEDS_TOKENS;
pub use virtual_time::VirtualTime;

use crossbeam_channel::bounded;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

/// One promise.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    catches: Flaw,
    check: fn(&dyn Subject),
}

/// The longest that a case may take, in milliseconds before the scale. The longest takes about three seconds.
const BOUND: u64 = 20_000;

impl Case {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The flaw that it exists for.
    #[must_use]
    pub fn catches(&self) -> Flaw {
        self.catches
    }

    /// Lets `subject` sit this case, on a thread that is left alone when the time is up.
    ///
    /// # Errors
    ///
    /// What it panicked with.
    fn check(&self, subject: Arc<dyn Subject>, thread: &str) -> Result<(), Box<dyn Any + Send>> {
        let (tell, told) = bounded(1);
        let check = self.check;
        thread::Builder::new()
            .name(thread.to_owned())
            .spawn(move || {
                desk::with_tags(subject.has_tags());
                // The subject goes with the panic, so that what it owns can see that the case has failed.
                let result = catch_unwind(AssertUnwindSafe(move || check(subject.as_ref())));
                let _nobody_waits_any_more = tell.send(result);
            })
            .expect("a thread can be started");
        let bound = desk::ms(BOUND);
        told.recv_timeout(bound)
            .unwrap_or_else(|_| Err(Box::new(format!("it did not end within {bound:?}"))))
    }
}

/// All cases.
#[must_use]
pub fn cases() -> &'static [Case] {
    crate::__conformance_table! { __conformance_list () }
}

/// Lets `subject` sit one case, [fairly]: once more if it fails on a machine that has no time for it. A case that the subject
/// says it [cannot](Subject::cannot) sit is printed and left out.
///
/// # Panics
///
/// If the promise is broken, or not kept in time; if there is no such case, here or among those that it cannot sit.
pub fn sit(case: &str, subject: impl Subject + 'static) {
    let find = |name: &str| {
        let found = cases().iter().find(|case| case.name == name);
        found.unwrap_or_else(|| panic!("there is no case `{name}`"))
    };
    let case = find(case);
    for (cannot, why) in subject.cannot() {
        if find(cannot).name == case.name {
            println!("{} cannot sit {cannot}: {why}", subject.name());
            return;
        }
    }
    // Dropped in the panic that ends this, so that what it owns can see that the case has failed.
    let subject: Arc<dyn Subject> = Arc::new(subject);
    fairly(|| {
        if let Err(panic) = case.check(Arc::clone(&subject), case.name) {
            println!("{} failed {}", subject.name(), case.name);
            resume_unwind(panic);
        }
    });
}
