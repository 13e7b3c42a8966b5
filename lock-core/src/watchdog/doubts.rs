//! [`Doubts`]: how many attempts and releases with an unknown outcome are not cleaned up yet, and who waits for that.

use crate::clock::{Clock, Moment, Signal, Woken};
use crate::sync::Mutex;
use crate::sync::mutant;
use std::sync::Arc;

/// Counts what is in doubt.
#[derive(Default)]
pub(super) struct Doubts(Mutex<Open>);

#[derive(Default)]
struct Open {
    count: usize,
    /// Raised when the last doubt is gone.
    waiting: Vec<Arc<Signal>>,
}

/// One thing that is in doubt, until this is dropped.
pub(crate) struct InDoubt(Arc<Doubts>);

impl Doubts {
    /// Something else is in doubt from here on.
    pub(super) fn one_more(self: &Arc<Self>) -> InDoubt {
        self.0.lock().count += 1;
        InDoubt(Arc::clone(self))
    }

    /// Whether anything is in doubt.
    pub(super) fn are_there(&self) -> bool {
        self.0.lock().count > 0
    }

    /// Waits until nothing is in doubt, at most until `until` on `clock`. Returns how much is.
    pub(super) fn wait(&self, clock: &dyn Clock, until: Moment) -> usize {
        let signal = Arc::new(Signal::new());
        {
            let mut open = self.0.lock();
            if open.count == 0 {
                return 0;
            }
            if mutant("doubts_counted_too_early") {
                drop(open);
                open = self.0.lock();
            }
            open.waiting.push(Arc::clone(&signal));
        }
        if clock.wait(&signal, until) == Woken::Signalled {
            return 0; // what is in doubt by now came later
        }
        let mut open = self.0.lock();
        open.waiting.retain(|it| !Arc::ptr_eq(it, &signal));
        open.count
    }
}

impl Drop for InDoubt {
    fn drop(&mut self) {
        let mut open = self.0.0.lock();
        open.count -= 1;
        if open.count == 0 {
            let waiting = std::mem::take(&mut open.waiting);
            drop(open);
            waiting.iter().for_each(|signal| signal.raise());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    /// A clock on which the last doubt goes and the next one comes before who waits looks again.
    struct Busy(Arc<Doubts>, Mutex<Option<InDoubt>>);

    impl std::fmt::Debug for Busy {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("busy")
        }
    }

    impl Clock for Busy {
        fn now(&self) -> Moment {
            SystemClock.now()
        }

        fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
            drop(self.1.lock().take());
            *self.1.lock() = Some(self.0.one_more());
            SystemClock.wait(signal, until)
        }
    }

    #[test]
    fn what_comes_into_doubt_after_everything_was_settled_is_not_waited_for() {
        let doubts = Arc::new(Doubts::default());
        let first = doubts.one_more();
        let clock = Busy(Arc::clone(&doubts), Mutex::new(Some(first)));
        assert_eq!(doubts.wait(&clock, Moment::NEVER), 0);
        assert_eq!(doubts.wait(&SystemClock, SystemClock.now()), 1);
    }
}
