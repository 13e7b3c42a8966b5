//! [`Times`]: a histogram of durations.

use std::time::Duration;

/// The ratio of a bucket's upper bound to that of the previous bucket: 2 % more.
const STEP: f64 = 1.02;
/// The number of buckets, enough for a duration of two hours.
const BUCKETS: usize = 1500;

/// A histogram of durations, of a fixed size.
#[derive(Clone)]
pub(super) struct Times {
    buckets: Vec<u64>,
    pub(super) count: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            buckets: vec![0; BUCKETS],
            count: 0,
        }
    }
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let nanos = time.as_nanos().max(1) as f64;
        let bucket = (nanos.ln() / STEP.ln()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
    }

    /// Returns the duration that the share `part` of all durations does not exceed, exact to 2 %.
    /// Returns `None` if no duration was added.
    pub(super) fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = (self.count as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        // The middle of the bucket.
        Some(Duration::from_nanos(STEP.powf(bucket as f64 + 0.5) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_two_percent() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        let mut more = Times::default();
        for micros in 1..=500 {
            times.add(Duration::from_micros(micros));
            more.add(Duration::from_micros(500 + micros));
        }
        times.merge(&more);
        assert_eq!(times.count, 1000);
        for (part, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = times.quantile(part).unwrap().as_secs_f64() * 1e6;
            assert!((found / micros - 1.0).abs() < 0.02, "{part}: {found}");
        }
    }
}
