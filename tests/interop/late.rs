//! [`Late`]: a failure for which a machine that stood still may be the cause. Only these are tried again.
//!
//! Two holders at once, a lost increment, a lock that is freed for a stranger and a loss that is not told are ordinary
//! panics: they end the test at once, however late the machine is.

use lock_core::conformance::fairly_beyond;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// Excuses a wake-up or a turn that came late: a thread that only keeps time was later than this.
pub(crate) const TURN: Duration = Duration::from_millis(20);

/// Excuses a lease of a second that was not renewed: less than this leaves a renewal after each third of it enough time.
pub(crate) const LEASE: Duration = Duration::from_millis(300);

/// The payload of a panic that [`retry_if_late`] may excuse.
#[derive(Debug)]
pub(crate) struct Late(String);

/// Fails the test, unless the machine was late.
pub(crate) fn late(message: String) -> ! {
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

/// Runs a test, and again, twice at most, where it failed by a [`Late`] while a thread that only keeps time was later than
/// `excuse`. Any other failure is final.
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
        Err(panic) => panic!("{}", message(panic.as_ref())),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<Late>().map_or("a panic without words", |late| &late.0)
}
