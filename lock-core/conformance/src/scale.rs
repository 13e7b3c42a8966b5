//! [`scaled`]: the times of tests, adapted to the speed of the machine.

use std::sync::LazyLock;
use std::time::Duration;

/// The factor in `LOCK_TEST_SCALE`, for machines that are slow or busy; 1 if it is not set.
static SCALE: LazyLock<f64> =
    LazyLock::new(|| factor(std::env::var("LOCK_TEST_SCALE").ok().as_deref()));

/// Returns a time of a test, multiplied by `LOCK_TEST_SCALE`.
///
/// # Panics
///
/// If `LOCK_TEST_SCALE` is set, and is not a number between 0.1 and 100.
#[must_use]
pub fn scaled(time: Duration) -> Duration {
    time.mul_f64(*SCALE)
}

/// Returns this many milliseconds, scaled.
pub(super) fn ms(millis: u64) -> Duration {
    scaled(Duration::from_millis(millis))
}

fn factor(text: Option<&str>) -> f64 {
    let Some(text) = text else { return 1.0 };
    let factor = text
        .parse()
        .ok()
        .filter(|factor| (0.1..=100.0).contains(factor));
    factor.unwrap_or_else(|| panic!("LOCK_TEST_SCALE={text} is not a factor between 0.1 and 100"))
}

#[cfg(test)]
mod tests {
    use super::factor;
    use std::panic::catch_unwind;

    #[test]
    fn scale_that_is_no_factor_is_refused() {
        assert_eq!((factor(None), factor(Some("2.5"))), (1.0, 2.5));
        for text in ["", "two", "0", "-1", "1000", "NaN"] {
            assert!(catch_unwind(|| factor(Some(text))).is_err(), "{text}");
        }
    }
}
