//! How late the machine must have been for a late test to be excused.

pub(crate) use lock_conformance::{late, retry_if_late_beyond as retry_if_late};
use std::time::Duration;

/// The lateness that excuses a late wake-up or turn.
pub(crate) const TURN: Duration = Duration::from_millis(20);

/// The lateness that excuses a lease of 1 s that was not renewed. On a machine that is less late, a
/// renewal after each third of the lease has enough time.
pub(crate) const LEASE: Duration = Duration::from_millis(300);

/// Asserts a condition that had the time `$bound` to become true, and that a late machine may
/// break. Use `assert!` for a condition that lateness cannot break, and a violation for what no
/// lock may do.
macro_rules! timely {
    ($bound:expr, $condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::late::late($bound, format!($($message)+));
        }
    };
}

pub(crate) use timely;
