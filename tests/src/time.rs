//! Waiting with a bound. The only place of the suite that sleeps, and the only one whose failures a
//! late machine can cause: those go through [`late`].

pub use lock_conformance::{late, retry_if_late, scaled};
use lock_conformance::{note_excuse, with_lateness};
use lock_core::{Clock, Moment, Signal, SystemClock};
use std::sync::Arc;
use std::time::Duration;

/// The time between two looks. Short enough for wake-ups, long enough not to be the load.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// So many milliseconds, as this machine needs them.
pub fn ms(millis: u64) -> Duration {
    scaled(Duration::from_millis(millis))
}

/// What a look can say: `true` and `Some` end the wait, `false` and `None` go on.
pub trait Look {
    /// What the wait returns.
    type Found;

    /// What was found, if anything.
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

/// Looks until something is found. Fails as [`late`] with `what` if that takes longer than `bound`
/// (times the scale). It looks once more after the bound, so a long pause of the machine does not
/// count as a failure.
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

/// Looks for the whole of `time` (times the scale), and panics with `what` as soon as a look fails.
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

/// Lets time pass that is itself the test's subject, such as a lease that must end. To wait for
/// something to happen, use [`eventually`].
pub fn let_pass(time: Duration) {
    pause(time);
}

/// How long something takes.
pub struct Stopwatch(Moment);

impl Stopwatch {
    pub fn start() -> Self {
        Self(SystemClock.now())
    }

    pub fn elapsed(&self) -> Duration {
        SystemClock.now().since(self.0)
    }
}

/// What a call may take beyond its deadline on a machine that has time for it. A test of a deadline
/// needs a wrong behaviour that takes far longer than the deadline and this.
const SLACK: Duration = Duration::from_secs(1);

/// The upper limit of that on any machine, whatever its lateness.
const MOST_SLACK: Duration = Duration::from_secs(4);

/// How much later than planned something may be on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    slack: Duration,
    /// Twice the lateness of the machine, and what the thread that worked was queued.
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
    /// Fails as [`late`] with `what` if something was `overdue` by more than a second (times the
    /// scale) and by more than the machine was late, which is an excuse; or by more than `most`,
    /// which only the wrong behaviour exceeds that the test is for.
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

/// Calls with a deadline in so many milliseconds, and fails as [`late`] if the call returns later
/// than that and the [tolerance](Tolerance::must_cover) of this machine.
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

/// The same for a call that is given no deadline, with a bound that is scaled.
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
        // Also where the slack alone would be more.
        assert!(!is_covered(60_000, 501, 500));
    }
}
