//! Reads the deadline of a guard, and waits for its renewals.

use crate::time::{eventually, late};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{LockGuard, LossCause};
use std::time::Duration;

/// The bound on the wait for a renewal that is due within seconds, so that a slow machine fails no
/// test.
const LONG: Duration = Duration::from_secs(60);

/// The longest time between the two clock readings for a deadline, so that the deadline is exact.
const EXACT: Duration = Duration::from_millis(5);

/// Returns the guard's local deadline, exact to a few milliseconds.
pub fn deadline(guard: &LockGuard) -> Moment {
    loop {
        let before = SystemClock.now();
        let left = guard.remaining();
        if SystemClock.now().since(before) < EXACT {
            return before + left;
        }
    }
}

/// Checks that the lock is valid. If its lease has ended before the renewal, for which there was
/// the time `left`, the test fails as late.
#[track_caller]
fn must_be_valid(guard: &LockGuard, left: Duration) {
    if guard.is_valid() {
        return;
    }
    let loss = guard.loss();
    match &loss {
        Some(loss) if loss.cause() == LossCause::Expired => late(left, format!("{loss:?}")),
        _ => panic!("{loss:?}"),
    }
}

/// Waits for two renewals, and checks that the lock is valid all the time. Two, because the first
/// may have been under way before this call.
#[track_caller]
pub fn await_renewals(guard: &LockGuard) {
    for renewal in ["one that may be under way", "one that is sent from now on"] {
        let (before, left) = (deadline(guard), guard.remaining());
        eventually(&format!("the lock is renewed: {renewal}"), LONG, || {
            must_be_valid(guard, left);
            deadline(guard) > before + EXACT * 10
        });
    }
}
