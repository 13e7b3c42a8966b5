//! [`SingleFlight`]: concurrent calls that need the same thing done share one, the leader's.
//!
//! The others wait for its outcome, each until its own deadline.

use lock_core::backend::Failure;
use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// One thing that is done once for all that need it. See the [module's text](self).
#[derive(Default)]
pub(crate) struct SingleFlight(Mutex<State>);

#[derive(Default)]
struct State {
    /// Whether there is a leader.
    busy: bool,
    waiting: Vec<Arc<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    signal: Arc<Signal>,
    result: Mutex<Option<FlightResult>>,
}

/// What the followers are told.
#[derive(Clone, Default)]
pub(crate) enum FlightResult {
    /// Look again: it may be done.
    #[default]
    Retry,
    Failed(Failure),
}

/// How a call takes part.
pub(crate) enum Flight<'a> {
    /// As the leader. It may have been done just before: look first.
    Lead(FlightLeader<'a>),
    /// As a follower, and the leader has finished.
    Finished(FlightResult),
    /// As a follower whose deadline came first.
    TimedOut,
}

/// The right to do it. Followers are woken when it is dropped, also by a panic.
pub(crate) struct FlightLeader<'a> {
    flight: &'a SingleFlight,
    pub(crate) result: FlightResult,
}

impl SingleFlight {
    /// Becomes the leader, or waits for it until `by`.
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
        // A result that comes together with the deadline counts.
        let told = waiting.result.lock().take();
        told.map_or(Flight::TimedOut, Flight::Finished)
    }

    /// How many wait for the leader.
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
