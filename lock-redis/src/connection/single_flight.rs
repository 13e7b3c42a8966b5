//! [`SingleFlight`]: concurrent calls with the same task share one execution, the leader's.
//!
//! The other calls wait for its outcome, each until its own deadline.

use lock_core::backend::Failure;
use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// A task that is carried out once for all concurrent calls. See the [module's text](self).
#[derive(Default)]
pub(crate) struct SingleFlight(Mutex<State>);

#[derive(Default)]
struct State {
    /// True while there is a leader.
    busy: bool,
    waiting: Vec<Arc<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    signal: Arc<Signal>,
    result: Mutex<Option<FlightResult>>,
}

/// The outcome for the followers.
#[derive(Clone, Default)]
pub(crate) enum FlightResult {
    /// The task may be done: the follower has to check.
    #[default]
    Retry,
    Failed(Failure),
}

/// The role of a call.
pub(crate) enum Flight<'a> {
    /// The leader. The task may have been done just before, so the leader has to check first.
    Lead(FlightLeader<'a>),
    /// A follower; the leader has finished.
    Finished(FlightResult),
    /// A follower whose deadline passed first.
    TimedOut,
}

/// The right to carry out the task. The drop, even by a panic, wakes the followers.
pub(crate) struct FlightLeader<'a> {
    flight: &'a SingleFlight,
    pub(crate) result: FlightResult,
}

impl SingleFlight {
    /// Becomes the leader, or waits for the leader until `by`.
    pub(crate) fn join(&self, clock: &dyn Clock, by: Moment) -> Flight<'_> {
        let mut state = self.0.lock();
        if !state.busy {
            state.busy = true;
            return Flight::Lead(FlightLeader {
                flight: self,
                result: FlightResult::Retry,
            });
        }
        let waiting = Arc::new(Waiting::default());
        state.waiting.push(Arc::clone(&waiting));
        drop(state);
        clock.wait(&waiting.signal, by);
        self.0
            .lock()
            .waiting
            .retain(|other| !Arc::ptr_eq(other, &waiting));
        // A result that arrives together with the deadline counts.
        let told = waiting.result.lock().take();
        told.map_or(Flight::TimedOut, Flight::Finished)
    }

    /// Returns how many calls wait for the leader.
    #[cfg(test)]
    pub(crate) fn followers(&self) -> usize {
        self.0.lock().waiting.len()
    }
}

impl Drop for FlightLeader<'_> {
    fn drop(&mut self) {
        let mut state = self.flight.0.lock();
        state.busy = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in waiting {
            *waiting.result.lock() = Some(self.result.clone());
            waiting.signal.raise();
        }
    }
}
