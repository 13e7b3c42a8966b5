//! Numbers as the database has them: with a sign. A number out of range becomes the nearest one.

use lock_core::FencingToken;
use std::time::Duration;

/// Returns a duration in microseconds.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the duration of so many microseconds.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(crate) fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(crate) fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Returns the token with this number.
pub(crate) fn token(number: i64) -> Option<FencingToken> {
    u64::try_from(number).ok().map(FencingToken::new)
}
