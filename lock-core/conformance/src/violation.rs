//! [`Violation`]: the failure of a test because a lock did what it must never do.

use std::fmt;
use std::panic::{Location, panic_any};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The name of threads whose panics are expected, and not printed.
pub(super) const QUIET: &str = "quiet case";

/// The number of violations that this process has raised.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// The panic of a test that sees a wrong answer about safety: two holders at once, a token that
/// does not grow, a loss that is not reported. Raised only by [`violated`] and [`violated_unless`].
///
/// No delay of the machine excuses a violation, even if another thread's panic hides it:
/// [`retry_if_late`] does not repeat a test if any thread raised a violation during the test.
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

/// Fails the test because of a wrong answer about safety, which `what` describes.
///
/// # Panics
///
/// Always, with [`Violation`].
#[track_caller]
pub fn violated(what: impl fmt::Display) -> ! {
    // Counted before the panic, because another thread's panic may hide this one.
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

/// Fails the test because of a wrong answer about safety if `condition` is false.
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

/// Returns whether this thread's panics are expected, and so not printed.
pub(super) fn is_quiet() -> bool {
    thread::current().name() == Some(QUIET)
}

/// Returns the number of violations that this process has raised so far.
pub(super) fn count() -> usize {
    SEEN.load(Ordering::SeqCst)
}
