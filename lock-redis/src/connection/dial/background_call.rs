//! [`BackgroundCall`]: a call without a deadline, in the background; its callers have deadlines.

use lock_core::backend::{contain, run_in_background};
use lock_core::{Clock, Moment, SystemClock};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Calls of one kind, one at a time: with a call that hangs, threads would pile up.
pub(super) struct BackgroundCall<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    finished: Condvar,
}

struct State<T> {
    running: bool,
    /// How many calls have ended.
    ended: u64,
    /// What the last one returned; `None` if it panicked.
    last: Option<T>,
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum CallNotDone {
    /// No thread could be started.
    NoThread(io::Error),
    /// It has not returned until the deadline.
    Late,
    Panicked,
}

impl<T: Clone + Send + 'static> BackgroundCall<T> {
    pub(super) fn new() -> Self {
        let state = Mutex::new(State { running: false, ended: 0, last: None });
        Self(Arc::new(Shared { state, finished: Condvar::new() }))
    }

    /// The result of `call`, or of one that is already running, until `by`.
    pub(super) fn call(
        &self,
        clock: &dyn Clock,
        by: Moment,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallNotDone> {
        let mut state = self.0.state.lock();
        let awaited = state.ended + 1;
        if !state.running {
            self.start(call).map_err(CallNotDone::NoThread)?;
            state.running = true;
        }
        while state.ended < awaited {
            let left = by.since(clock.now());
            if left.is_zero() {
                return Err(CallNotDone::Late);
            }
            let _timed_out = self.0.finished.wait_for(&mut state, left.min(SystemClock::SLICE));
        }
        state.last.clone().ok_or(CallNotDone::Panicked)
    }

    fn start(&self, call: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        run_in_background(move || {
            let answer = contain(call);
            let mut state = shared.state.lock();
            state.running = false;
            state.ended += 1;
            state.last = answer;
            drop(state);
            shared.finished.notify_all();
        })
    }

    #[cfg(test)]
    pub(super) fn ended(&self) -> u64 {
        self.0.state.lock().ended
    }

    /// Pretends that a call is running, which never ends.
    #[cfg(test)]
    pub(super) fn hang(&self) {
        self.0.state.lock().running = true;
    }
}

impl<T> fmt::Debug for BackgroundCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackgroundCall")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn call_that_panics_is_followed_by_the_next() {
        let calls = BackgroundCall::new();
        let soon = || SystemClock.now() + Duration::from_secs(5);
        let outcome = calls.call(&SystemClock, soon(), || -> u8 { panic!("on purpose") });
        assert!(matches!(outcome, Err(CallNotDone::Panicked)), "{outcome:?}");
        assert_eq!(calls.call(&SystemClock, soon(), || 7).unwrap(), 7);
    }
}
