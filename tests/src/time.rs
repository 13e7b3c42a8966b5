//! Waiting with a bound. Only this module of the suite sleeps, and only failures from here may be
//! due to a late machine: they go through [`late`].

pub use lock_conformance::{late, retry_if_late, scaled};
use lock_conformance::{note_excuse, with_lateness};
use lock_core::{Clock, Moment, Signal, SystemClock};
use std::sync::Arc;
use std::time::Duration;

/// The time between two checks. Short enough to notice an event soon, long enough to cause no load.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Returns this many milliseconds, multiplied by the scale.
pub fn ms(millis: u64) -> Duration {
    scaled(Duration::from_millis(millis))
}

/// The result of a check: `true` and `Some` end the wait, `false` and `None` continue it.
pub trait Look {
    /// The value that the wait returns.
    type Found;

    /// Returns what the check found, if anything.
    fn found(self) -> Option<Self::Found>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Checks until something is found. Fails as [`late`] with `what` if that takes longer than `bound`
/// (times the scale). The last check is after the bound, so a long pause of the machine alone does
/// not fail the test.
#[track_caller]
pub fn eventually<L: Look>(what: &str, bound: Duration, mut look: impl FnMut() -> L) -> L::Found {
    let bound = scaled(bound);
    let until = SystemClock.now() + bound;
    loop {
        let last = SystemClock.now() >= until;
        if let Some(found) = look().found() {
            return found;
        }
        if last {
            late(bound, format!("waited {bound:?} in vain for this: {what}"));
        }
        pause(LOOK_AGAIN);
    }
}

/// Checks for the whole of `time` (times the scale), and panics with `what` as soon as a check
/// fails.
#[track_caller]
pub fn always(what: &str, time: Duration, mut look: impl FnMut() -> bool) {
    let until = SystemClock.now() + scaled(time);
    loop {
        assert!(look(), "this did not stay so: {what}");
        if SystemClock.now() >= until {
            return;
        }
        pause(LOOK_AGAIN);
    }
}

/// Waits for a time that is itself the test's subject, such as a lease that must end. To wait for
/// an event, use [`eventually`].
pub fn let_pass(time: Duration) {
    pause(time);
}

/// Measures how long something takes.
pub struct Stopwatch(Moment);

impl Stopwatch {
    pub fn start() -> Self {
        Self(SystemClock.now())
    }

    pub fn elapsed(&self) -> Duration {
        SystemClock.now().since(self.0)
    }
}

/// How long a call may take beyond its deadline on a machine that is not busy. A test of a deadline
/// needs a wrong behaviour that takes far longer than the deadline and this.
const SLACK: Duration = Duration::from_secs(1);

/// The upper limit of the time beyond a deadline on any machine, however late it is.
const MOST_SLACK: Duration = Duration::from_secs(4);

/// How much later than planned an event may happen on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    slack: Duration,
    /// Twice the longest delay of the machine, and the time for which the working thread waited for
    /// a processor.
    lateness: Duration,
}

/// Runs `work`, and measures how late the machine was meanwhile.
pub fn with_tolerance<T>(work: impl FnOnce() -> T) -> (T, Tolerance) {
    let (outcome, lateness) = with_lateness(work);
    let lateness = lateness.longest * 2 + lateness.queued;
    (
        outcome,
        Tolerance {
            slack: scaled(SLACK),
            lateness,
        },
    )
}

impl Tolerance {
    /// Fails as [`late`] with `what` if an event was `overdue` by more than the allowance: a second
    /// (times the scale) plus the measured lateness of the machine, but at most `most`. Beyond
    /// `most`, lateness is no excuse: only the wrong behaviour that the test looks for is that
    /// late.
    #[track_caller]
    pub fn must_cover(&self, overdue: Duration, most: Duration, what: &str) {
        let widened = (self.slack + self.lateness).min(most);
        if overdue > widened {
            late(
                widened,
                format!("{what}: {overdue:?} too late, where {widened:?} may be"),
            );
        }
        if overdue > self.slack {
            note_excuse(format_args!(
                "{what}: {overdue:?} too late; excused: {:?}",
                self.lateness
            ));
        }
    }
}

/// Makes a call with a deadline in this many milliseconds, and fails as [`late`] if the call
/// returns later than the deadline and the [tolerance](Tolerance::must_cover) of this machine.
#[track_caller]
pub fn timed<T>(milliseconds: u64, call: impl FnOnce(Moment) -> T) -> T {
    let ((outcome, overdue), tolerance) = with_tolerance(|| {
        let by = SystemClock.now() + Duration::from_millis(milliseconds);
        let outcome = call(by);
        (outcome, SystemClock.now().since(by))
    });
    tolerance.must_cover(overdue, scaled(MOST_SLACK), "a call returned");
    outcome
}

/// Makes a call without a deadline, and fails as [`late`] if it takes longer than `bound` (times
/// the scale) and the [tolerance](Tolerance::must_cover) of this machine.
#[track_caller]
pub fn within<T>(bound: Duration, call: impl FnOnce() -> T) -> T {
    timed(u64::try_from(scaled(bound).as_millis()).unwrap(), |_| {
        call()
    })
}

fn pause(time: Duration) {
    let unraised = Arc::new(Signal::new());
    let _due = SystemClock.wait(&unraised, SystemClock.now() + time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn lateness_widens_no_bound_beyond_its_maximum() {
        let ms = Duration::from_millis;
        let is_covered = |lateness, overdue, most| {
            let tolerance = Tolerance {
                slack: ms(1_000),
                lateness: ms(lateness),
            };
            catch_unwind(|| tolerance.must_cover(ms(overdue), ms(most), "it")).is_ok()
        };
        assert!(is_covered(0, 1_000, 4_000));
        assert!(!is_covered(0, 1_001, 4_000));
        assert!(is_covered(2_000, 3_000, 4_000));
        assert!(!is_covered(60_000, 4_001, 4_000));
        // The maximum counts, too, where it is less than the slack.
        assert!(!is_covered(60_000, 501, 500));
    }
}
