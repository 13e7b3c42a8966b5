//! What a test reads of a guard while it is renewed.

use crate::time::{eventually, late};
use distlock::{Clock, LockGuard, LossCause, Moment, SystemClock};
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

/// Checks that the lock is valid. That its lease of seconds has ended may be because the machine is
/// late.
#[track_caller]
pub fn must_be_valid(guard: &LockGuard) {
    if guard.is_valid() {
        return;
    }
    let loss = guard.loss();
    match &loss {
        Some(loss) if loss.cause() == LossCause::Expired => late(format!("{loss:?}")),
        _ => panic!("{loss:?}"),
    }
}

/// Waits for two renewals, of which the second is sent from now on, and checks that the lock is
/// valid all the time.
#[track_caller]
pub fn await_renewals(guard: &LockGuard) {
    for renewal in ["one that may be under way", "one that is sent from now on"] {
        let before = deadline(guard);
        eventually(&format!("the lock is renewed: {renewal}"), LONG, || {
            must_be_valid(guard);
            deadline(guard) > before + EXACT * 10
        });
    }
}
