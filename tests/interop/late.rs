//! How late the machine must have been for a late test to be excused.

pub(crate) use lock_conformance::{late, retry_if_late_beyond as retry_if_late};
use std::time::Duration;

/// Excuses a wake-up or a turn that came late.
pub(crate) const TURN: Duration = Duration::from_millis(20);

/// Excuses a lease of a second that was not renewed: less than this leaves a renewal after each
/// third of it enough time.
pub(crate) const LEASE: Duration = Duration::from_millis(300);

/// Asserts a condition for which there was as long as a bound: a late machine may break it. One
/// that it cannot break is an `assert!`, and what no lock may do is a violation.
macro_rules! timely {
    ($bound:expr, $condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::late::late($bound, format!($($message)+));
        }
    };
}

pub(crate) use timely;
