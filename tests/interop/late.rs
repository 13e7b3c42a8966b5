//! [`Late`]: a failure for which a machine that stood still may be the cause. Only these are tried
//! again.
//!
//! Two holders at once, a lost increment, a lock that is freed for a stranger and a loss that is
//! not told are ordinary panics: they end the test at once, however late the machine is.

use crate::harness::time::let_pass;
use crate::suite::{Suite, case};
use lock_core::conformance::fairly_beyond;
use std::any::Any;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::time::Duration;

/// Excuses a wake-up or a turn that came late: a thread that only keeps time was later than this.
pub(crate) const TURN: Duration = Duration::from_millis(20);

/// Excuses a lease of a second that was not renewed: less than this leaves a renewal after each
/// third of it enough time.
pub(crate) const LEASE: Duration = Duration::from_millis(300);

/// The payload of a panic that [`retry_if_late`] may excuse.
#[derive(Debug)]
pub(crate) struct Late(String);

/// Fails the test, unless the machine was late.
#[track_caller]
pub(crate) fn late(message: String) -> ! {
    let message = format!("{message} ({})", Location::caller());
    say!("late: {message}");
    resume_unwind(Box::new(Late(message)));
}

/// An assertion that a late machine may break.
macro_rules! timely {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::late::late(format!($($message)+));
        }
    };
}

pub(crate) use timely;

/// Runs a test, and again, twice at most, where it failed by a [`Late`] while a thread that only
/// keeps time was later than `excuse`. Any other failure is final.
pub(crate) fn retry_if_late(excuse: Duration, mut test: impl FnMut()) {
    let judged = catch_unwind(AssertUnwindSafe(|| {
        fairly_beyond(excuse, || match catch_unwind(AssertUnwindSafe(&mut test)) {
            Err(panic) if panic.is::<Late>() => resume_unwind(panic),
            outcome => outcome,
        })
    }));
    match judged {
        Ok(Ok(())) => {}
        Ok(Err(violation)) => resume_unwind(violation),
        // Said already.
        Err(panic) => resume_unwind(Box::new(message(panic.as_ref()).to_owned())),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<Late>().map_or("a panic without words", |late| &late.0)
}

pub(crate) fn mount(suite: &mut Suite) {
    suite.alone(case!(a_violation_is_final_however_late_the_machine_is));
    suite.alone(case!(a_late_failure_is_excused_where_the_machine_was_late_and_only_there));
}

/// Runs a test that fails by this payload twice, and then passes: how often it ran, and whether it
/// passed.
fn judged(excuse: Duration, payload: impl Fn() -> Box<dyn Any + Send>) -> (u32, bool) {
    let mut runs = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        retry_if_late(excuse, || {
            runs += 1;
            // A thread that keeps time has been woken by then.
            let_pass(Duration::from_millis(20));
            if runs <= 2 {
                resume_unwind(payload());
            }
        });
    }));
    (runs, outcome.is_ok())
}

/// Any machine is later than not at all.
const ALWAYS: Duration = Duration::ZERO;
const NEVER: Duration = Duration::from_secs(3_600);

fn a_violation_is_final_however_late_the_machine_is() {
    assert_eq!(judged(ALWAYS, || Box::new("on purpose")), (1, false));
}

fn a_late_failure_is_excused_where_the_machine_was_late_and_only_there() {
    let late = || Box::new(Late("on purpose".to_owned())) as Box<dyn Any + Send>;
    assert_eq!(judged(ALWAYS, late), (3, true));
    assert_eq!(judged(NEVER, late), (1, false));
}
