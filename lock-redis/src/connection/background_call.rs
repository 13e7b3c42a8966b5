//! [`BackgroundCall`]: a call without a deadline on a background thread, for callers with
//! deadlines.

use super::DialTime;
use lock_core::backend::{contain, run_in_background};
use lock_core::{Moment, SystemClock};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Calls of one kind, such as reads of one file. Concurrent callers share a call and its result.
///
/// Normally one call runs at a time. If it has not returned after [`AGAIN`] and a caller waits,
/// another call is started in parallel. The pause before each further call is twice as long as
/// before, until the newest call returns. At most [`MOST`] calls run at a time, because threads
/// must not pile up.
pub(crate) struct BackgroundCall<T>(Arc<Shared<T>>);

/// The time that a call may take before another one is started in parallel, because these calls
/// have no deadline of their own and may hang: reads of files, look-ups of names, and credentials
/// providers. The pause doubles for each further call.
const AGAIN: Duration = Duration::from_secs(5);
/// The most calls that run at the same time.
const MOST: u64 = 8;

struct Shared<T> {
    state: Mutex<State<T>>,
    finished: Condvar,
}

struct State<T> {
    /// The number of calls that were started.
    started: u64,
    /// The number of calls that have ended.
    ended: u64,
    /// The number of the newest call, while it runs.
    current: Option<u64>,
    /// The time from which another call may be started in parallel.
    next: Moment,
    pause: Duration,
    /// The result of the call that ended last; `None` if it panicked.
    last: Option<T>,
}

/// The reasons why a call has no result.
#[derive(Debug)]
pub(crate) enum CallNotDone {
    /// No thread could be started.
    NoThread(io::Error),
    /// No call has returned within the caller's time.
    Late,
    Panicked,
}

impl<T: Clone + Send + 'static> BackgroundCall<T> {
    pub(crate) fn new() -> Self {
        let state = State {
            started: 0,
            ended: 0,
            current: None,
            next: Moment::NEVER,
            pause: AGAIN,
            last: None,
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            finished: Condvar::new(),
        }))
    }

    /// Returns the result of `call`, or of a call that is already running, if either ends in
    /// `time`.
    pub(crate) fn call(
        &self,
        time: &DialTime<'_>,
        call: impl Fn() -> T + Clone + Send + 'static,
    ) -> Result<T, CallNotDone> {
        let mut state = self.0.state.lock();
        let awaited = state.ended + 1;
        while state.ended < awaited {
            let is_due = state.current.is_none() || time.now() >= state.next;
            if is_due && state.started - state.ended < MOST {
                match self.start(&mut state, time.now(), call.clone()) {
                    Err(error) if state.current.is_none() => {
                        return Err(CallNotDone::NoThread(error));
                    }
                    _ => {}
                }
            }
            let left = time.left();
            if left.is_zero() {
                return Err(CallNotDone::Late);
            }
            let _timed_out = self
                .0
                .finished
                .wait_for(&mut state, left.min(SystemClock::SLICE));
        }
        state.last.clone().ok_or(CallNotDone::Panicked)
    }

    fn start(
        &self,
        state: &mut State<T>,
        now: Moment,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<()> {
        let (shared, number) = (Arc::clone(&self.0), state.started);
        run_in_background(move || {
            let answer = contain(call);
            let mut state = shared.state.lock();
            state.ended += 1;
            state.last = answer;
            if state.current == Some(number) {
                (state.current, state.pause) = (None, AGAIN);
            }
            drop(state);
            shared.finished.notify_all();
        })?;
        state.started += 1;
        state.current = Some(number);
        state.next = now + state.pause;
        state.pause *= 2;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn ended(&self) -> u64 {
        self.0.state.lock().ended
    }

    /// Pretends that `MOST` calls are running and never end.
    #[cfg(test)]
    pub(crate) fn hang(&self) {
        self.0.state.lock().started += MOST;
    }
}

impl<T> Clone for BackgroundCall<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for BackgroundCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackgroundCall")
    }
}

/// An operating system error that can be cloned: its number, or a text.
#[derive(Clone, Debug)]
pub(crate) enum SystemError {
    Number(i32),
    Text(String),
}

impl From<io::Error> for SystemError {
    fn from(error: io::Error) -> Self {
        error
            .raw_os_error()
            .map_or_else(|| Self::Text(error.to_string()), Self::Number)
    }
}

impl From<SystemError> for io::Error {
    fn from(error: SystemError) -> Self {
        match error {
            SystemError::Number(number) => Self::from_raw_os_error(number),
            SystemError::Text(text) => Self::other(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{Clock, ManualClock};
    use std::sync::mpsc::channel;

    #[test]
    fn call_that_panics_is_followed_by_the_next() {
        let calls = BackgroundCall::new();
        let soon = || SystemClock.now() + Duration::from_secs(5);
        let outcome = calls.call(&DialTime::until(&SystemClock, soon()), || -> u8 {
            panic!("on purpose")
        });
        assert!(matches!(outcome, Err(CallNotDone::Panicked)), "{outcome:?}");
        assert_eq!(
            calls
                .call(&DialTime::until(&SystemClock, soon()), || 7)
                .unwrap(),
            7
        );
    }

    #[test]
    fn hanging_call_is_made_again_and_calls_stay_bounded() {
        let (clock, calls) = (ManualClock::new(), BackgroundCall::new());
        let (go, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let hanging = move || {
            let _opened = gate.lock().recv();
            false
        };
        let wait = |wait| DialTime::until(&clock, clock.now() + wait);
        let ask = || calls.call(&wait(Duration::ZERO), hanging.clone());
        let started = || calls.0.state.lock().started;
        for times in 1..=3 {
            for _ in 0..3 {
                assert!(matches!(ask(), Err(CallNotDone::Late)));
                assert_eq!(started(), times, "none beside it before its time");
            }
            clock.jump(AGAIN * (1 << (times - 1)));
        }
        // When the newest call has returned, older calls that still hang do not delay the next
        // calls.
        for times in 4..=7 {
            assert!(calls.call(&wait(Duration::from_secs(60)), || true).unwrap());
            assert_eq!(started(), times);
        }
        for _ in 0..20 {
            assert!(matches!(ask(), Err(CallNotDone::Late)));
            clock.jump(AGAIN * 1000);
        }
        assert_eq!(started() - calls.ended(), MOST);
        drop(go);
        assert!(
            !calls
                .call(&wait(Duration::from_secs(60)), || false)
                .unwrap()
        );
    }
}
