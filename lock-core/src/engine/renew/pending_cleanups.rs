//! [`PendingCleanups`]: the number of releases in the background that are not confirmed yet.

use crate::sync::Mutex;
use crate::time::{Clock, Moment, Signal, Woken};
use std::sync::Arc;

/// A counter of pending cleanups, and the threads that wait until no cleanup is pending.
#[derive(Default)]
pub(super) struct PendingCleanups(Mutex<Open>);

#[derive(Default)]
struct Open {
    count: usize,
    /// The signals of the threads that wait for zero.
    waiting: Vec<Arc<Signal>>,
}

/// The entry of one pending cleanup in the counter, removed on drop.
pub(in crate::engine) struct PendingCleanup(Arc<PendingCleanups>);

impl PendingCleanups {
    /// Adds a pending cleanup.
    pub(super) fn add(self: &Arc<Self>) -> PendingCleanup {
        self.0.lock().count += 1;
        PendingCleanup(Arc::clone(self))
    }

    pub(super) fn any(&self) -> bool {
        self.0.lock().count > 0
    }

    /// Waits until no cleanup is pending, at most until `until` on `clock`. Returns the number of
    /// cleanups that are pending at `until`; 0 if none was pending at some earlier moment.
    pub(super) fn wait(&self, clock: &dyn Clock, until: Moment) -> usize {
        let signal = Arc::new(Signal::new());
        {
            let mut open = self.0.lock();
            if open.count == 0 {
                return 0;
            }
            open.waiting.push(Arc::clone(&signal));
        }
        if clock.wait(&signal, until) == Woken::Signalled {
            return 0; // any pending cleanup began after all earlier ones ended
        }
        let mut open = self.0.lock();
        open.waiting.retain(|it| !Arc::ptr_eq(it, &signal));
        open.count
    }
}

impl Drop for PendingCleanup {
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
    use crate::time::SystemClock;

    /// A clock on which the last cleanup ends and the next begins before the waiter checks again.
    struct Busy(Arc<PendingCleanups>, Mutex<Option<PendingCleanup>>);

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
            *self.1.lock() = Some(self.0.add());
            SystemClock.wait(signal, until)
        }
    }

    #[test]
    fn cleanup_that_begins_after_all_ended_is_not_waited_for() {
        let cleanups = Arc::new(PendingCleanups::default());
        let first = cleanups.add();
        let clock = Busy(Arc::clone(&cleanups), Mutex::new(Some(first)));
        assert_eq!(cleanups.wait(&clock, Moment::NEVER), 0);
        assert_eq!(cleanups.wait(&SystemClock, SystemClock.now()), 1);
    }
}
