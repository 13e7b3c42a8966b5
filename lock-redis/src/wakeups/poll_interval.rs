//! [`PollInterval`]: how often a waiter asks again where releases are not published.

use std::time::Duration;

/// How often a waiter asks again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PollInterval {
    pub(crate) interval: Duration,
    /// What is added at random, so that waiters do not march in step.
    pub(crate) jitter: Duration,
}

/// The default interval of polls, as in the usual loop around Jedis.
const INTERVAL: Duration = Duration::from_millis(100);

/// The random part that is added, so that clients do not poll in step.
const JITTER: Duration = Duration::from_millis(25);

/// Where every release should be published, and changes are not reported: for a release that is not
/// published all the same, and for a lock that is deleted by hand.
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
    /// At this interval; and unless it is given, with a jitter of a quarter of that at most.
    pub(crate) fn new(interval: Duration, jitter: Option<Duration>) -> Self {
        Self {
            interval,
            jitter: jitter.unwrap_or(JITTER.min(interval / 4)),
        }
    }

    /// The same, and not more often than this.
    pub(crate) fn at_least(self, interval: Duration) -> Self {
        Self {
            interval: self.interval.max(interval),
            ..self
        }
    }

    /// How long to wait until the next time.
    pub(crate) fn pause(self) -> Duration {
        self.interval + self.jitter.mul_f64(fastrand::f64())
    }
}
