//! Waiting with a bound. The only place of the suite that sleeps, and the only one whose failures a
//! late machine can cause: those go through [`late`].

use lock_core::conformance::with_lateness;
pub use lock_core::conformance::{late, late_after, retry_if_late};
use lock_core::{Clock, Moment, Signal, SystemClock};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The time between two looks. Short enough for wake-ups, long enough not to be the load.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// `DISTLOCK_TEST_SCALE`: what every bound is multiplied with, for machines that are slow or busy.
static SCALE: LazyLock<f64> = LazyLock::new(|| match std::env::var("DISTLOCK_TEST_SCALE") {
    Err(_) => 1.0,
    Ok(text) => match text.parse::<f64>() {
        Ok(scale) if (0.1..=100.0).contains(&scale) => scale,
        _ => panic!("DISTLOCK_TEST_SCALE={text} is not a factor between 0.1 and 100"),
    },
});

/// The bound as this machine needs it.
pub fn scaled(bound: Duration) -> Duration {
    bound.mul_f64(*SCALE)
}

/// The same, from milliseconds.
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

/// What a store answers. Fails as [`late`] if it did not do so in the time that a command has.
#[track_caller]
pub fn answered<T>(outcome: Result<T, distlock::Error>) -> T {
    match outcome {
        Ok(answer) => answer,
        Err(error) if error.is_unavailable() && error.to_string().contains("in time") => {
            late(error.to_string())
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// Looks until something is found. Fails as [`late`] with `what` if that takes longer than `bound`
/// (times the scale).
///
/// It looks once more after the bound, so a long pause of the machine does not count as a failure.
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
            late_after(bound, format!("waited {bound:?} in vain for this: {what}"));
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

/// Runs `work`, and returns how much later than its deadline it may have ended on this machine: a
/// second (times the scale), twice the lateness of threads that only keep time, and the time that
/// this thread was ready to run without a processor, which those threads do not see.
pub fn with_tolerance<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let ((outcome, queued), slice) = with_lateness(|| {
        let queued = time_queued();
        let outcome = work();
        (outcome, time_queued() - queued)
    });
    (outcome, scaled(SLACK) + slice * 2 + queued)
}

/// Calls with a deadline in so many milliseconds, and fails as [`late`] if the call returns later
/// than that and the [tolerance](with_tolerance) of this machine.
#[track_caller]
pub fn timed<T>(milliseconds: u64, call: impl FnOnce(Moment) -> T) -> T {
    let ((outcome, overdue), tolerance) = with_tolerance(|| {
        let by = SystemClock.now() + Duration::from_millis(milliseconds);
        let outcome = call(by);
        (outcome, SystemClock.now().since(by))
    });
    if overdue > tolerance {
        let what = format!("{overdue:?} too late, where this machine may take {tolerance:?}");
        late_after(tolerance, what);
    }
    outcome
}

/// The same for a call that is given no deadline, with a bound that is scaled.
#[track_caller]
pub fn within<T>(bound: Duration, call: impl FnOnce() -> T) -> T {
    timed(u64::try_from(scaled(bound).as_millis()).unwrap(), |_| call())
}

/// How long this thread has been ready to run and waited for a processor, by the system's account;
/// zero where the system keeps none.
fn time_queued() -> Duration {
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = account.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

fn pause(time: Duration) {
    let unraised = Arc::new(Signal::new());
    let _due = SystemClock.wait(&unraised, SystemClock.now() + time);
}
