//! [`Doubts`]: how many attempts and releases with an unknown outcome are not cleaned up yet, and who waits for that.

use crate::clock::{Clock, Moment, Signal, Woken};
use parking_lot::Mutex;
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
pub(super) struct InDoubt(Arc<Doubts>);

impl Doubts {
    /// Something else is in doubt from here on.
    pub(super) fn one_more(self: &Arc<Self>) -> InDoubt {
        self.0.lock().count += 1;
        InDoubt(Arc::clone(self))
    }

    /// Waits until nothing is in doubt, at most until `until` on `clock`. Returns how much is.
    pub(super) fn wait(&self, clock: &dyn Clock, until: Moment) -> usize {
        let signal = Arc::new(Signal::new());
        {
            let mut open = self.0.lock();
            if open.count == 0 {
                return 0;
            }
            open.waiting.push(Arc::clone(&signal));
        }
        let _woken: Woken = clock.wait(&signal, until);
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
