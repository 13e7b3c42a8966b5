//! [`ContainedClock`]: a wrapper that contains the panics of an application's clock.

use crate::panics::contain;
use crate::time::{Clock, ManualClock, Moment, Signal, SystemClock, Woken};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest sleep on the machine's clock after the application's clock has panicked in a wait,
/// so that the application's clock is read again if it recovers.
const SLICE: Duration = Duration::from_millis(100);

/// A wrapper that contains the panics of a clock, because clocks are read in the middle of state
/// changes, which a panic would leave half done. If a reading of the wrapped clock panics, the
/// result is the moment of creation plus the time since then on the machine's clock, but never
/// earlier than a moment returned before.
#[derive(Debug)]
pub(crate) struct ContainedClock {
    clock: Arc<dyn Clock>,
    /// The moment of creation, on the wrapped clock and on the machine's clock.
    made: (Moment, Moment),
    /// The latest moment returned.
    last: AtomicU64,
}

impl ContainedClock {
    /// Wraps a clock, unless it is a clock of this crate, which does not panic.
    pub(crate) fn around(clock: Arc<dyn Clock>) -> Arc<dyn Clock> {
        let ours: &dyn Any = clock.as_ref();
        if ours.is::<SystemClock>() || ours.is::<ManualClock>() || ours.is::<Self>() {
            return clock;
        }
        let now = contain(|| clock.now()).unwrap_or_else(|| SystemClock.now());
        let (made, last) = ((now, SystemClock.now()), AtomicU64::new(now.as_nanos()));
        Arc::new(Self { clock, made, last })
    }
}

impl Clock for ContainedClock {
    fn now(&self) -> Moment {
        let now = contain(|| self.clock.now())
            .unwrap_or_else(|| self.made.0 + SystemClock.now().since(self.made.1));
        let last = self.last.fetch_max(now.as_nanos(), Ordering::Relaxed);
        now.max(Moment::from_nanos(last))
    }

    fn unix_time(&self) -> Duration {
        contain(|| self.clock.unix_time()).unwrap_or_else(|| SystemClock.unix_time())
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        if let Some(woken) = contain(|| self.clock.wait(signal, until)) {
            return woken;
        }
        loop {
            let left = until.since(self.now());
            if SystemClock.wait(signal, SystemClock.now() + left.min(SLICE)) == Woken::Signalled {
                return Woken::Signalled;
            }
            if self.now() >= until {
                return Woken::Due;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Broken;

    impl Clock for Broken {
        fn now(&self) -> Moment {
            std::panic::resume_unwind(Box::new("on purpose"));
        }

        fn wait(&self, _: &Arc<Signal>, _: Moment) -> Woken {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }

    #[test]
    fn time_goes_on_where_the_clock_panics() {
        let clock = ContainedClock::around(Arc::new(Broken));
        let (before, until) = (clock.now(), clock.now() + Duration::from_millis(20));
        let signal = Arc::new(Signal::new());
        assert_eq!(clock.wait(&signal, until), Woken::Due);
        assert!(clock.now() >= until && until > before);
        signal.raise();
        assert_eq!(clock.wait(&signal, Moment::NEVER), Woken::Signalled);
        assert!(!clock.unix_time().is_zero());
    }
}
