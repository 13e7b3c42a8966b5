//! [`Backoff`]: pauses between repetitions, which double and are partly random.

use std::time::Duration;

/// The pauses after failures in a row. Up to half of each pause is random, so that clients that
/// lost the same store do not all retry at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff whose first pause is between `first` and twice `first`. Each further pause
    /// doubles on average, and no pause is longer than `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Records a failure and returns the pause after it.
    #[allow(
        clippy::should_implement_trait,
        reason = "nothing iterates over pauses"
    )]
    pub fn next(&mut self) -> Duration {
        self.failures += 1;
        let doubled = self.first * 2u32.saturating_pow(self.failures.min(10));
        doubled
            .min(self.longest)
            .mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Returns the number of failures since the last success.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Records a success: the pauses start from the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}
