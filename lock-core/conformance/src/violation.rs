//! [`Violation`]: a test that fails because a lock did what it must never do.

use std::fmt;
use std::panic::{Location, panic_any};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The name of threads whose panics are expected, and not printed.
pub(super) const QUIET: &str = "quiet case";

/// How many violations this process has seen.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// What a test panics with when it sees a wrong answer about safety: two holders at once, a token
/// that does not grow, a loss that is not told. Raised by [`violated`] and [`violated_unless`]
/// only.
///
/// No lateness excuses it, not even if the panic itself is lost: [`retry_if_late`] never runs a
/// test again during which a violation was raised, on whatever thread.
///
/// [`retry_if_late`]: super::retry_if_late
#[derive(Clone, Debug)]
pub struct Violation {
    what: String,
    at: &'static Location<'static>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "violation, at {}: {}", self.at, self.what)
    }
}

/// Fails the test because of a wrong answer about safety: `what` says it.
///
/// # Panics
///
/// Always, with [`Violation`].
#[track_caller]
pub fn violated(what: impl fmt::Display) -> ! {
    // Before the panic: another thread's panic may hide it.
    SEEN.fetch_add(1, Ordering::SeqCst);
    let violation = Violation {
        what: what.to_string(),
        at: Location::caller(),
    };
    if !is_quiet() {
        // The panic hook cannot print such a payload.
        eprintln!("{violation}");
    }
    panic_any(violation)
}

/// The same if `condition` does not hold.
///
/// # Panics
///
/// If `condition` is false, with [`Violation`].
#[track_caller]
pub fn violated_unless(condition: bool, what: impl fmt::Display) {
    if !condition {
        violated(what);
    }
}

/// Whether this thread's panics are expected.
pub(super) fn is_quiet() -> bool {
    thread::current().name() == Some(QUIET)
}

/// How many violations this process has seen so far.
pub(super) fn count() -> usize {
    SEEN.load(Ordering::SeqCst)
}
