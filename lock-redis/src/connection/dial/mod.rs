//! [`Dialer`]: makes connections. Name look-up, connecting and handshake share one deadline.
//!
//! Calls for which the system has no deadline (name look-ups, files, providers of credentials) run
//! in the background, and the dial waits for them until its own deadline.

mod connect;
mod credentials;
mod destination;
mod pending_dial;
mod resolve;

pub(crate) use credentials::{CredentialsSource, PasswordSource};
pub(crate) use destination::{Destination, Login, Timeouts};

use super::history::{Noted, Shown, judge};
use super::{Connection, ConnectionLike, HISTORY, Identity};
use destination::DialState;
use lock_core::Moment;
use lock_core::backend::{Failure, no_thread};
use parking_lot::Mutex;
use pending_dial::{Connect, DialOutcome, PendingDial};
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Makes connections to one server. Dropping the dialer ends all unfinished dials and the exclusive
/// connections that it made.
#[derive(Debug)]
pub(crate) struct Dialer {
    destination: Arc<Destination>,
    /// The dials whose callers have stopped waiting. The next callers use the connections of these
    /// dials.
    unclaimed: Mutex<Vec<Arc<PendingDial>>>,
    /// The number of connections that have failed. When this number grows, each user checks its
    /// connection before the next use. So a restart of the server fails one request, not one
    /// request on each connection.
    failures: AtomicU64,
}

/// The part (one eighth) of the connect timeout by which a deadline may be earlier than the end of
/// that timeout. A caller with such a deadline, or a later one, dials on its own thread.
const SPARED: u32 = 8;
/// The time that the first dial may take before another one is begun in parallel, because a new
/// connection may succeed while the first is stuck. A third dial is begun after the second one has
/// taken twice that time, and so on. Once a dial has succeeded, see `LEAST_AGAIN`.
const AGAIN: Duration = Duration::from_secs(2);
/// The shortest time before a parallel dial is begun, in place of `AGAIN`, once a dial has
/// succeeded. Twice the duration of the last successful dial is used if that is longer, so that no
/// parallel dial is begun while the first one takes no longer than usual.
const LEAST_AGAIN: Duration = Duration::from_millis(250);

impl Dialer {
    pub(crate) fn new(destination: Destination) -> Self {
        let (unclaimed, failures) = (Mutex::default(), AtomicU64::new(0));
        Self {
            destination: Arc::new(destination),
            unclaimed,
            failures,
        }
    }

    /// Returns a dialer to a test's listener, without a login.
    #[cfg(test)]
    pub(crate) fn to(listener: &std::net::TcpListener, command: Duration) -> Self {
        Self::new(Destination::of(listener, Duration::from_secs(5), command))
    }

    /// Makes a connection before the deadline `by`, and within the connect timeout.
    ///
    /// If `by` is too early for the connect timeout (see `SPARED`), the dial runs in the background
    /// and continues after `by`. The next call then gets the outcome of this dial, and begins
    /// another dial only if this dial takes long or has failed.
    ///
    /// Fails with [`Failure::Refused`] if a repetition cannot succeed, and with
    /// [`Failure::NotSent`] otherwise.
    pub(crate) fn dial(&self, by: Moment) -> Result<Connection, Failure> {
        // The failure of an earlier dial is returned in place of a time-out, because the failure
        // says more. Exception: a failure that is older than the connect timeout.
        let (mut refusal, begun) = (None, self.clock().now());
        while let Some(dial) = self.claim() {
            match dial.wait(self.clock(), by) {
                Some(DialOutcome {
                    result: Ok(mut connection),
                    ..
                }) => {
                    connection.check_idle();
                    if connection.is_open() {
                        return Ok(connection);
                    }
                }
                Some(DialOutcome {
                    at,
                    result: Err(failure),
                }) => {
                    if begun.since(at) < self.timeouts().connect {
                        refusal = Some(failure);
                    }
                }
                None => return Err(self.leave(dial, refusal)),
            }
        }
        let now = self.clock().now();
        let whole = now + self.timeouts().connect;
        let lender = self.lender();
        let is_apart = match lender {
            Some(pool) => pool.may_hang(),
            None => by + self.timeouts().connect / SPARED < whole,
        };
        // A connection of the application that comes late is of no use.
        let end = if lender.is_some() {
            by.min(whole)
        } else {
            whole
        };
        if is_apart {
            match self.dial_apart((by, end), Destination::dial, refusal.clone()) {
                Ok(outcome) => return outcome,
                // On this thread, the wait of the application's pool would have no bound.
                Err(error) if lender.is_some() => return Err(not_begun(error)),
                Err(_) => {}
            }
        }
        let outcome = self.destination.dial(by.min(whole), &<_>::default());
        let is_late = self.clock().now() >= by.min(whole);
        outcome.map_err(|failure| refusal.filter(|_| is_late).unwrap_or(failure))
    }

    /// As [`Destination::dial_any`], on a thread of its own if the wait could have no bound.
    pub(crate) fn dial_any(&self, by: Moment) -> Result<Connection, Failure> {
        if !self.lender().is_some_and(|pool| pool.may_hang()) {
            return self.destination.dial_any(by);
        }
        let dial = |destination: &Destination, by, _: &DialState| destination.dial_any(by);
        self.dial_apart((by, by), dial, None)
            .unwrap_or_else(|error| Err(not_begun(error)))
    }

    /// Dials on a thread of its own until `end`, and waits for it until `by`. Fails if the system
    /// cannot start a thread.
    fn dial_apart(
        &self,
        (by, end): (Moment, Moment),
        connect: Connect,
        refusal: Option<Failure>,
    ) -> io::Result<Result<Connection, Failure>> {
        let dial = PendingDial::start(&self.destination, end, connect)?;
        let outcome = dial.wait(self.clock(), by).map(|outcome| outcome.result);
        Ok(outcome.unwrap_or_else(|| Err(self.leave(dial, refusal))))
    }

    /// Removes and returns a dial that no caller waits for: a dial that has ended, otherwise the
    /// youngest dial. Returns `None` if there is no such dial, or if the youngest has taken so long
    /// that another dial is to be begun in parallel.
    fn claim(&self) -> Option<Arc<PendingDial>> {
        let now = self.clock().now();
        let first = self
            .usual()
            .map_or(AGAIN, |usual| (usual * 2).max(LEAST_AGAIN));
        let mut unclaimed = self.unclaimed.lock();
        let ended = unclaimed.iter().position(|dial| dial.has_ended());
        let youngest = || {
            let (place, dial) = unclaimed
                .iter()
                .enumerate()
                .max_by_key(|(_, it)| it.began())?;
            let others = u32::try_from(unclaimed.len() - 1).unwrap_or(u32::MAX);
            let again = first.saturating_mul(2u32.saturating_pow(others));
            (now.since(dial.began()) < again).then_some(place)
        };
        ended
            .or_else(youngest)
            .map(|place| unclaimed.swap_remove(place))
    }

    /// Puts the dial back for the next caller. Returns the failure of this caller, whose deadline
    /// has passed.
    fn leave(&self, dial: Arc<PendingDial>, refusal: Option<Failure>) -> Failure {
        let failure = refusal.unwrap_or_else(|| self.late(dial.state()));
        match self.lender() {
            // The application may need a connection that comes late.
            Some(_) => dial.abandon(),
            None => self.unclaimed.lock().push(dial),
        }
        failure
    }

    /// Connects until `by`, and returns `true` if the server has at least a part of the history
    /// that was noted at the given time: see
    /// [`is_of_same_history`](crate::connection::history::Judgement::is_of_same_history).
    pub(crate) fn succeeds(&self, (noted, at): &(Noted, Moment), by: Moment) -> bool {
        let Some(shown) = self.show(by) else {
            return false;
        };
        judge(noted, &shown, self.clock().now().since(*at)).is_of_same_history()
    }

    fn show(&self, by: Moment) -> Option<Shown> {
        let mut connection = self.dial(by).ok()?;
        let reply = connection.call(&HISTORY, by).ok()?;
        let run_id = self.identity().and_then(Identity::known)?.to_string();
        let shown = Shown::read(&String::from_utf8_lossy(reply.as_bytes()?));
        Some(Shown {
            run_id: Some(run_id),
            ..shown
        })
    }

    /// Returns the number of connections that have failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Counts a failed connection.
    pub(crate) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// Gives access to the destination: the server, and the properties that its connections share.
impl Deref for Dialer {
    type Target = Destination;

    fn deref(&self) -> &Destination {
        &self.destination
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.retire();
        self.unclaimed.lock().iter().for_each(|dial| dial.abandon());
    }
}

/// Returns the failure of a wait for the application's pool that no thread could be started for.
fn not_begun(error: io::Error) -> Failure {
    Failure::NotSent(no_thread("cannot borrow a connection", error))
}

#[cfg(test)]
mod tests;
