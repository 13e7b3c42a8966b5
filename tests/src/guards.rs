//! What a test reads of a guard while it is renewed.

use crate::time::{eventually, late};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{LockGuard, LossCause};
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

/// Checks that the lock is valid. On a late machine its lease may end before its renewal, which had
/// as long as `left`.
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

/// Waits for two renewals, of which the second is sent from now on, and checks that the lock is
/// valid all the time.
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
