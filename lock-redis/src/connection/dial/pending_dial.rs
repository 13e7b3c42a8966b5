//! [`PendingDial`]: a dial on a thread of its own, which continues when its caller stops waiting.

use super::destination::{Destination, DialState};
use crate::connection::{Connection, ConnectionLike};
use lock_core::backend::{Failure, contain, run_in_background};
use lock_core::{Clock, Error, Moment, Signal};
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The time for which an opened connection is offered to callers, because an unused connection
/// counts against the server's limit of clients.
const KEPT: Duration = Duration::from_secs(10);

/// Makes a connection until a deadline, and records its progress.
pub(super) type Connect = fn(&Destination, Moment, &DialState) -> Result<Connection, Failure>;

/// A dial under way, or its outcome.
pub(super) struct PendingDial {
    began: Moment,
    state: DialState,
    outcome: Mutex<Option<DialOutcome>>,
    /// Raised when the outcome is set.
    ended: Arc<Signal>,
    /// Raised when the outcome has been fetched, or will never be fetched.
    fetched: Arc<Signal>,
}

/// The result of a dial, and the time of its end.
pub(super) struct DialOutcome {
    pub(super) at: Moment,
    pub(super) result: Result<Connection, Failure>,
}

impl PendingDial {
    /// Begins `connect` with the deadline `by`. Fails if the system cannot start a thread.
    pub(super) fn start(
        destination: &Arc<Destination>,
        by: Moment,
        connect: Connect,
    ) -> io::Result<Arc<Self>> {
        let (began, destination) = (destination.clock().now(), Arc::clone(destination));
        let (state, outcome, ended, fetched) = <_>::default();
        let dial = Arc::new(Self {
            began,
            state,
            outcome,
            ended,
            fetched,
        });
        let pending = Arc::clone(&dial);
        run_in_background(move || {
            let result =
                contain(|| connect(&destination, by, &pending.state)).unwrap_or_else(|| {
                    let message = format!("connecting to {} panicked", destination.server());
                    Err(Failure::NotSent(Error::unavailable(message)))
                });
            let at = destination.clock().now();
            let is_connected = result.is_ok();
            *pending.outcome.lock() = Some(DialOutcome { at, result });
            pending.ended.raise();
            if is_connected {
                destination.clock().wait(&pending.fetched, at + KEPT);
                pending.close();
            }
        })?;
        Ok(dial)
    }

    /// Waits for the outcome, and returns it once; `None` if there is none by the deadline.
    pub(super) fn wait(&self, clock: &Arc<dyn Clock>, by: Moment) -> Option<DialOutcome> {
        let outcome = self.outcome.lock().take();
        let outcome = outcome.or_else(|| {
            clock.wait(&self.ended, by);
            self.outcome.lock().take()
        })?;
        self.fetched.raise();
        Some(outcome)
    }

    /// Ends the offer of the connection: no caller will fetch it.
    pub(super) fn abandon(&self) {
        self.fetched.raise();
    }

    /// Closes a connection that was not fetched, or gives it back if it is a lent one; the next
    /// caller dials anew.
    fn close(&self) {
        let mut outcome = self.outcome.lock();
        if let Some(DialOutcome {
            result: Ok(connection),
            ..
        }) = &mut *outcome
        {
            if connection.is_lent() {
                *outcome = None;
            } else {
                connection.close_with(&Error::unavailable("no caller has fetched it"));
            }
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.outcome.lock().is_some()
    }

    pub(super) fn began(&self) -> Moment {
        self.began
    }

    /// Returns the progress of the dial.
    pub(super) fn state(&self) -> &DialState {
        &self.state
    }
}

impl fmt::Debug for PendingDial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingDial")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
