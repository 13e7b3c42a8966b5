//! How late the machine must have been for a late test to be excused.

pub(crate) use lock_core::conformance::{late, late_after, retry_if_late_beyond as retry_if_late};
use std::time::Duration;

/// Excuses a wake-up or a turn that came late.
pub(crate) const TURN: Duration = Duration::from_millis(20);

/// Excuses a lease of a second that was not renewed: less than this leaves a renewal after each
/// third of it enough time.
pub(crate) const LEASE: Duration = Duration::from_millis(300);

/// An assertion that a late machine may break, `after` a bound that is known. One that it cannot
/// break is an `assert!`, and what no lock may do is a violation.
macro_rules! timely {
    (after $bound:expr, $condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::late::late_after($bound, format!($($message)+));
        }
    };
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::late::late(format!($($message)+));
        }
    };
}

pub(crate) use timely;
