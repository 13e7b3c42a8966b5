//! What a test reads of a guard while it is renewed.

use crate::time::eventually;
use distlock::{Clock, LockGuard, Moment, SystemClock};
use std::time::Duration;

/// How long a renewal may take that is due within seconds.
const LONG: Duration = Duration::from_secs(60);

/// Between the two looks of which a deadline is made.
const EXACT: Duration = Duration::from_millis(5);

/// The guard's local deadline, exact to a few milliseconds.
pub fn deadline(guard: &LockGuard) -> Moment {
    loop {
        let before = SystemClock.now();
        let left = guard.remaining();
        if SystemClock.now().since(before) < EXACT {
            return before + left;
        }
    }
}

/// Waits for two renewals, of which the second is sent from now on, and checks that the lock is
/// valid all the time.
#[track_caller]
pub fn await_renewals(guard: &LockGuard) {
    for renewal in ["one that may be under way", "one that is sent from now on"] {
        let before = deadline(guard);
        eventually(&format!("the lock is renewed: {renewal}"), LONG, || {
            assert!(guard.is_valid(), "{:?}", guard.loss());
            deadline(guard) > before + EXACT * 10
        });
    }
}
