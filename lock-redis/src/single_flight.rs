//! [`SingleFlight`]: many need the same thing done at the same time; one does it, and the others wait for what comes of it,
//! each within its own deadline.

use lock_core::backend::Failure;
use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// Whoever needs it done. See the [module's text](self).
#[derive(Default)]
pub(crate) struct SingleFlight(Mutex<State>);

#[derive(Default)]
struct State {
    /// Whether somebody does it.
    busy: bool,
    waiting: Vec<Arc<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    signal: Arc<Signal>,
    result: Mutex<Option<FlightResult>>,
}

/// What those who waited are told.
#[derive(Clone, Default)]
pub(crate) enum FlightResult {
    /// Look again.
    #[default]
    Retry,
    Failed(Failure),
}

/// What falls to one of them.
pub(crate) enum Flight<'a> {
    /// To do it. It may have been done just before, so look first.
    Lead(FlightLeader<'a>),
    /// To hear what came of it.
    Finished(FlightResult),
    /// Neither, until its deadline.
    TimedOut,
}

/// Somebody does it. When this ends, in whatever way - a panic, too - those who wait are told.
pub(crate) struct FlightLeader<'a> {
    flight: &'a SingleFlight,
    pub(crate) result: FlightResult,
}

impl SingleFlight {
    /// Does it, or waits until `by` for the one who does.
    pub(crate) fn join(&self, clock: &dyn Clock, by: Moment) -> Flight<'_> {
        let mut state = self.0.lock();
        if !state.busy {
            state.busy = true;
            return Flight::Lead(FlightLeader { flight: self, result: FlightResult::Retry });
        }
        let waiting = Arc::new(Waiting::default());
        state.waiting.push(Arc::clone(&waiting));
        drop(state);
        clock.wait(&waiting.signal, by);
        self.0.lock().waiting.retain(|other| !Arc::ptr_eq(other, &waiting));
        // Told at the same moment as the deadline came: that counts.
        let told = waiting.result.lock().take();
        told.map_or(Flight::TimedOut, Flight::Finished)
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
