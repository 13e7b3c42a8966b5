//! [`SkippedTime`]: time that may have passed while the clock stood still.
//!
//! While a virtual machine is paused, all its clocks stand still, even a clock that advances while
//! a machine sleeps. When the time of day is corrected afterwards, it leaps ahead of the clock. An
//! operator can cause a leap as well. So a leap ends no lock: it makes each lock doubtful until the
//! store confirms it.

use crate::sync::Mutex;
use crate::time::{Clock, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// The time, in nanoseconds, above which a step of the time of day counts as a leap. Smaller steps
/// are covered by the fixed part of the drift allowance, which even a short lease has.
const LEAP: i64 = 2_000_000;

/// The number of leaps whose times are remembered. A forgotten leap counts as skipped since any
/// moment before the oldest remembered one, so that the skipped time is never too short.
const MOST_LEAPS: usize = 64;

/// A clock reading, with the total time that the clock may have skipped until then, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) now: Moment,
    pub(crate) skipped: u64,
}

impl Reading {
    /// Returns the longest time that may have passed since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        let skipped = self.skipped.saturating_sub(earlier.skipped);
        self.now.since(earlier.now) + Duration::from_nanos(skipped)
    }
}

/// A record of the leaps of the time of day, which is compared with the clock at each reading.
pub(super) struct SkippedTime {
    clock: Arc<dyn Clock>,
    /// The time of day minus the clock, in nanoseconds: at the start or after the last leap, or the
    /// smaller difference after the time of day was set back. Written under the mutex.
    ahead: AtomicI64,
    /// The total of all leaps, in nanoseconds. Written under the mutex, before `ahead`.
    total: AtomicU64,
    /// The time at which each leap was noticed, with the total from then on.
    leaps: Mutex<Vec<(Moment, u64)>>,
}

/// The result of comparing the clock with the time of day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    Even,
    Leap,
}

/// Returns the time of day minus the clock, in nanoseconds.
fn difference(unix: Duration, now: Moment) -> i64 {
    let nanos = unix.as_secs().wrapping_mul(1_000_000_000) + u64::from(unix.subsec_nanos());
    nanos.wrapping_sub(now.as_nanos()).cast_signed()
}

impl SkippedTime {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let ahead = difference(clock.unix_time(), clock.now());
        Self {
            clock,
            ahead: AtomicI64::new(ahead),
            total: AtomicU64::new(0),
            leaps: <_>::default(),
        }
    }

    /// Reads the clock, and records a leap if the time of day has made one.
    pub(super) fn look(&self) -> (Reading, Look) {
        // In this order, a delay between the two readings makes the difference smaller, so the
        // delay does not appear as a leap.
        let unix = self.clock.unix_time();
        let now = self.clock.now();
        let change = difference(unix, now).wrapping_sub(self.ahead.load(Ordering::Acquire));
        let look = if (-LEAP..=LEAP).contains(&change) {
            Look::Even
        } else {
            self.note()
        };
        (
            Reading {
                now,
                skipped: self.total.load(Ordering::Acquire),
            },
            look,
        )
    }

    /// Repeats the comparison under the mutex, and records a leap.
    #[cold]
    fn note(&self) -> Look {
        let mut leaps = self.leaps.lock();
        let before = self.clock.now();
        let unix = self.clock.unix_time();
        let now = self.clock.now();
        let known = self.ahead.load(Ordering::Acquire);
        let (least, most) = (difference(unix, now), difference(unix, before));
        let leap = least.wrapping_sub(known);
        if leap > LEAP {
            let total = self
                .total
                .load(Ordering::Acquire)
                .saturating_add(leap.unsigned_abs());
            if leaps.len() == MOST_LEAPS {
                leaps.remove(0);
            }
            leaps.push((now, total));
            self.total.store(total, Ordering::Release);
            self.ahead.store(least, Ordering::Release);
            return Look::Leap;
        }
        // If the time of day was set back, a later leap is measured from the new time.
        if most.wrapping_sub(known) < 0 {
            self.ahead.store(most, Ordering::Release);
        }
        Look::Even
    }

    /// Returns the reading at an earlier moment, without the leaps that were noticed later. Such a
    /// leap may have happened before that moment; then the store is queried once more than needed.
    pub(super) fn reading_at(&self, at: Moment) -> Reading {
        let skipped = match self.total.load(Ordering::Acquire) {
            0 => 0,
            _ => {
                let leaps = self.leaps.lock();
                let before = leaps.iter().rev().find(|(noted, _)| *noted <= at);
                before.map_or(0, |(_, total)| *total)
            }
        };
        Reading { now: at, skipped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ManualClock, Signal, SystemClock, Woken};

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> (ManualClock, SkippedTime) {
        let clock = ManualClock::new();
        (clock.clone(), SkippedTime::new(Arc::new(clock)))
    }

    /// Sets the time of day ahead, or back, by this much.
    fn step(clock: &ManualClock, ahead: Duration, back: Duration) {
        clock.set_unix_time(clock.unix_time() + ahead - back);
    }

    #[test]
    fn only_leaps_ahead_count_and_each_once() {
        let (clock, time) = start();
        let skipped = || Duration::from_nanos(time.look().0.skipped);
        clock.jump(SECOND * 3_600);
        assert_eq!(time.look().1, Look::Even);
        step(&clock, SECOND * 8, Duration::ZERO);
        assert_eq!(time.look().1, Look::Leap);
        assert_eq!((time.look().1, skipped()), (Look::Even, SECOND * 8));
        step(&clock, Duration::ZERO, SECOND * 20);
        assert_eq!((time.look().1, skipped()), (Look::Even, SECOND * 8));
        // The leap is measured from the time of day after it was set back.
        step(&clock, SECOND * 5, Duration::ZERO);
        assert_eq!((time.look().1, skipped()), (Look::Leap, SECOND * 13));
        step(&clock, Duration::from_micros(1_900), Duration::ZERO);
        assert_eq!((time.look().1, skipped()), (Look::Even, SECOND * 13));
    }

    #[test]
    fn reading_at_a_moment_has_the_leaps_that_were_noted_by_then() {
        let (clock, time) = start();
        let begin = clock.now();
        for seconds in 1..=100 {
            clock.jump(SECOND);
            step(&clock, SECOND, Duration::ZERO);
            let (reading, _) = time.look();
            assert_eq!(reading.since(time.reading_at(begin)), SECOND * 2 * seconds);
            assert_eq!(reading.since(time.reading_at(reading.now)), Duration::ZERO);
        }
        let reading = time.look().0;
        let ago = |seconds| reading.since(time.reading_at(begin + SECOND * seconds));
        assert_eq!(
            [100, 99, 98, 40].map(ago),
            [0, 2, 4, 120].map(|seconds| SECOND * seconds)
        );
        assert!(
            ago(10) >= SECOND * 180,
            "what is forgotten counts as skipped since"
        );
    }

    /// A test's clock that reports no time of day.
    #[derive(Debug)]
    struct Bare(ManualClock);

    impl Clock for Bare {
        fn now(&self) -> Moment {
            self.0.now()
        }

        fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
            self.0.wait(signal, until)
        }
    }

    #[test]
    fn time_of_day_advances_with_a_clock_that_does_not_tell_it() {
        let clock = ManualClock::new();
        let time = SkippedTime::new(Arc::new(Bare(clock.clone())));
        for _ in 0..10 {
            SystemClock.wait(
                &Arc::default(),
                SystemClock.now() + Duration::from_millis(5),
            );
            assert_eq!(time.look().1, Look::Even);
            clock.jump(SECOND * 100);
            assert_eq!(time.look().1, Look::Even);
        }
    }
}
