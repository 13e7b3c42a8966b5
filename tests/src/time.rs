//! Waiting with a bound. The only place of the suite that sleeps.

pub use lock_core::conformance::retry_if_late;
use lock_core::conformance::with_lateness;
use lock_core::{Clock, Moment, Signal, SystemClock};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// How long the next look is put off. Short enough for the tests that measure wake-ups, long enough not to be the load.
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

/// Looks until something is found, and panics with `what` if that takes longer than `bound` (times the scale).
///
/// It always looks once more after the bound, so a long pause of the machine is not taken for a failure.
#[track_caller]
pub fn eventually<L: Look>(what: &str, bound: Duration, mut look: impl FnMut() -> L) -> L::Found {
    let bound = scaled(bound);
    let until = SystemClock.now() + bound;
    loop {
        let last = SystemClock.now() >= until;
        if let Some(found) = look().found() {
            return found;
        }
        assert!(!last, "waited {bound:?} in vain for this: {what}");
        pause(LOOK_AGAIN);
    }
}

/// Looks for the whole of `time` (times the scale), and panics with `what` as soon as it is not so.
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

/// Lets time pass that is itself the test's subject: a lease that is to run out. To wait for something to happen, use
/// [`eventually`].
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

/// Runs `call` with this much time and checks that it takes no more, but for what the machine took (other programs may
/// be using it): 50 ms, twice what threads that only keep time were late meanwhile, and the time that this thread was
/// ready to run and got no processor. Those that keep time do not see the last one: the scheduler prefers who
/// sleeps most of the time to who has work to do.
#[track_caller]
pub fn timed<T>(milliseconds: u64, call: impl FnOnce(Moment) -> T) -> T {
    let ((outcome, late, queued), slice) = with_lateness(|| {
        let queued = time_queued();
        let by = SystemClock.now() + Duration::from_millis(milliseconds);
        let outcome = call(by);
        (outcome, SystemClock.now().since(by), time_queued() - queued)
    });
    assert!(
        late < ms(50) + slice * 2 + queued,
        "{late:?} too late, a thread {slice:?}, and without a processor for {queued:?}"
    );
    outcome
}

/// The same with a bound as this machine needs it, for a call that is given no time of ours.
#[track_caller]
pub fn within<T>(bound: Duration, call: impl FnOnce() -> T) -> T {
    timed(u64::try_from(scaled(bound).as_millis()).unwrap(), |_| call())
}

/// How long this thread has been ready to run and waited for a processor, by the system's account; zero where it keeps
/// none.
fn time_queued() -> Duration {
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = account.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

fn pause(time: Duration) {
    let nobody = Arc::new(Signal::new());
    let _due = SystemClock.wait(&nobody, SystemClock.now() + time);
}
