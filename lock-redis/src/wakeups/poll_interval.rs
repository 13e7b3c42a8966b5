//! [`PollInterval`]: the interval at which a waiter polls if releases are not published.

use std::time::Duration;

/// The interval at which a waiter polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PollInterval {
    pub(crate) interval: Duration,
    /// The largest random part that is added, so that waiters do not poll all at once.
    pub(crate) jitter: Duration,
}

/// The default interval of polls, as in the usual loop around Jedis.
const INTERVAL: Duration = Duration::from_millis(100);

/// The largest random part that is added by default, so that clients do not poll all at once.
const JITTER: Duration = Duration::from_millis(25);

/// The interval if every release should be published, but changes of keys are not reported, because
/// a release may still not be published, or a lock may be deleted manually.
pub(crate) const UNTRACKED: PollInterval = PollInterval {
    interval: Duration::from_secs(4),
    jitter: Duration::from_secs(1),
};

impl Default for PollInterval {
    fn default() -> Self {
        Self::new(INTERVAL, None)
    }
}

impl PollInterval {
    /// Returns an interval of polls. If no jitter is given, the default is used, but at most a
    /// quarter of the interval.
    pub(crate) fn new(interval: Duration, jitter: Option<Duration>) -> Self {
        Self {
            interval,
            jitter: jitter.unwrap_or(JITTER.min(interval / 4)),
        }
    }

    /// Returns this interval, but not less than the given one.
    pub(crate) fn at_least(self, interval: Duration) -> Self {
        Self {
            interval: self.interval.max(interval),
            ..self
        }
    }

    /// Returns the time until the next poll.
    pub(crate) fn pause(self) -> Duration {
        self.interval + self.jitter.mul_f64(fastrand::f64())
    }
}
