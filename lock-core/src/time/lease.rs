//! [`Lease`] and [`LeaseTime`]: the time for which the store keeps a lock without a renewal.

use crate::error::Error;
use std::fmt;
use std::time::Duration;

/// A lease in whole milliseconds, from 5 ([`SHORTEST`](Self::SHORTEST)) to 2^53 - 1: a larger
/// number is not exact in Lua.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseTime(u64);

impl LeaseTime {
    /// The longest lease, in milliseconds: 2^53 - 1, about 285,000 years, the largest integer that
    /// is exact in Lua.
    pub const MAX_MILLIS: u64 = (1 << 53) - 1;

    /// The shortest lease, because the allowance of [`validity`](Self::validity) takes more than
    /// half of a shorter one.
    pub const SHORTEST: Duration = Duration::from_millis(5);

    /// Validates a duration and rounds it up to whole milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] below [`LeaseTime::SHORTEST`] and above [`LeaseTime::MAX_MILLIS`].
    pub fn new(lease: Duration) -> Result<Self, Error> {
        if lease < Self::SHORTEST {
            return Err(Error::misuse(format!(
                "a lease of {lease:?} is too short: at least {:?} is needed to be of any use after \
                the allowance for clock drift",
                Self::SHORTEST
            )));
        }
        let millis = lease.as_nanos().div_ceil(1_000_000);
        match u64::try_from(millis) {
            Ok(millis) if millis <= Self::MAX_MILLIS => Ok(Self(millis)),
            _ => Err(Error::misuse(format!(
                "a lease of {lease:?} is too long: at most {} ms (2^53 - 1) are allowed",
                Self::MAX_MILLIS
            ))),
        }
    }

    /// Returns a lease for the time that is left, at least the shortest lease; `None` if no time is
    /// left, or if the time is longer than the longest lease.
    pub(crate) fn of_rest(left: Duration) -> Option<Self> {
        if left.is_zero() {
            return None;
        }
        Self::new(left.max(Self::SHORTEST)).ok()
    }

    /// Returns the lease in milliseconds.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the lease as a duration.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// Returns how long the holder may trust the lease, counted from before the request was sent.
    ///
    /// The allowance is that of the Redlock specification: one part in a hundred of the lease for
    /// clock drift, and 2 ms for the store's rounding of expiry.
    #[must_use]
    pub fn validity(self) -> Duration {
        let lease = self.duration();
        lease.saturating_sub(lease / 100 + Duration::from_millis(2))
    }
}

impl fmt::Debug for LeaseTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseTime({:?})", self.duration())
    }
}

impl fmt::Display for LeaseTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.duration())
    }
}

/// A lease that the watchdog renews, or a fixed lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lease {
    /// A lease that the watchdog renews every third of `ttl` until the lock is released or lost, or
    /// `renewals` is reached.
    Watched {
        /// The lease that each renewal requests, at least [`Lease::SHORTEST_WATCHED`].
        ttl: Duration,
        /// The maximum number of renewals. After the last one, the lock ends with its lease, and
        /// the holder is notified a third of the lease after that renewal. `None`: no limit.
        renewals: Option<u32>,
    },
    /// A lease that ends after this time, without renewals.
    Fixed(Duration),
}

impl Lease {
    /// The shortest lease that the watchdog renews, because a shorter one leaves no time for a
    /// second attempt at a renewal.
    pub const SHORTEST_WATCHED: Duration = Duration::from_millis(100);

    /// Returns a lease of `ttl` that the watchdog renews without a limit.
    #[must_use]
    pub fn watched(ttl: Duration) -> Self {
        Self::Watched {
            ttl,
            renewals: None,
        }
    }

    /// Returns the lease to request from the store.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the lease is too short or too long.
    pub fn time(&self) -> Result<LeaseTime, Error> {
        match *self {
            Self::Watched { ttl, .. } if ttl < Self::SHORTEST_WATCHED => {
                Err(Error::misuse(format!(
                    "a watched lease of {ttl:?} is too short: the watchdog needs at least {:?}",
                    Self::SHORTEST_WATCHED
                )))
            }
            Self::Watched { ttl, .. } => LeaseTime::new(ttl),
            Self::Fixed(time) => LeaseTime::new(time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_of_zero_or_beyond_exact_lua_number_is_refused() {
        assert!(LeaseTime::new(Duration::ZERO).unwrap_err().is_misuse());
        assert!(
            LeaseTime::new(Duration::from_micros(999))
                .unwrap_err()
                .is_misuse()
        );
        assert!(LeaseTime::new(Duration::from_millis(LeaseTime::MAX_MILLIS)).is_ok());
        assert!(LeaseTime::new(Duration::from_millis(LeaseTime::MAX_MILLIS + 1)).is_err());
        assert!(LeaseTime::new(Duration::MAX).unwrap_err().is_misuse());
    }

    #[test]
    fn lease_rounds_up_and_validity_is_shorter() {
        let lease = LeaseTime::new(Duration::from_micros(10_001)).unwrap();
        assert_eq!(lease.as_millis(), 11);
        assert!(lease.validity() < Duration::from_millis(9));
        assert!(
            !LeaseTime::new(LeaseTime::SHORTEST)
                .unwrap()
                .validity()
                .is_zero()
        );
    }

    #[test]
    fn watched_lease_below_minimum_is_refused() {
        assert!(
            Lease::watched(Duration::from_millis(99))
                .time()
                .unwrap_err()
                .is_misuse()
        );
        assert!(Lease::watched(Duration::from_millis(100)).time().is_ok());
        assert!(Lease::Fixed(Duration::from_millis(99)).time().is_ok());
    }
}
