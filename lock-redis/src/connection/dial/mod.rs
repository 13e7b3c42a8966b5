//! [`Dialer`]: makes connections. Look-up, connecting and handshake share one deadline.
//!
//! Whatever the system has no deadline for (name look-ups, files, providers of credentials) runs in
//! background, and the dial waits for it within its own.

mod connect;
mod credentials;
mod destination;
mod pending_dial;
mod resolve;

pub(crate) use credentials::{CredentialsSource, PasswordSource};
pub(crate) use destination::{Destination, Login, Timeouts};

use super::history::{Noted, Shown, judge};
use super::{Connection, ConnectionLike, HISTORY, Identity};
use lock_core::Moment;
use lock_core::backend::Failure;
use parking_lot::Mutex;
use pending_dial::{DialOutcome, PendingDial};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Makes connections to one server. Dropping it ends the dials under way.
#[derive(Debug)]
pub(crate) struct Dialer {
    destination: Arc<Destination>,
    /// The dials whose callers wait no longer. The next callers take their connections.
    unclaimed: Mutex<Vec<Arc<PendingDial>>>,
    /// How many connections have failed. After the first, users look at theirs before they trust
    /// it: a restart of the server costs one request, and not one for each connection.
    failures: AtomicU64,
}

/// A caller that waits for all of the connect timeout but this part dials on its own thread.
const SPARED: u32 = 8;
/// The time that the first dial may take before another one is begun in parallel, because its
/// connection may be stuck where a new one is not. The next follows after twice that time.
const AGAIN: Duration = Duration::from_secs(2);
/// The least such time once the duration of a dial is known, so that a dial of usual length has no
/// companion. It is twice the last duration if that is longer.
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

    /// To a test's listener, without a login.
    #[cfg(test)]
    pub(crate) fn to(listener: &std::net::TcpListener, command: Duration) -> Self {
        Self::new(Destination::of(listener, Duration::from_secs(5), command))
    }

    /// Makes a connection until `by`, and never takes longer than the connect timeout.
    ///
    /// Where `by` is earlier than that, the dial goes on in background: the next call gets its
    /// connection, and makes none beside it unless it takes long.
    ///
    /// Fails with [`Failure::Refused`] where the server replied that it will never let us in, and
    /// with [`Failure::NotSent`] otherwise.
    pub(crate) fn dial(&self, by: Moment) -> Result<Connection, Failure> {
        // What a server has said says more than a time-out does, unless it was long ago.
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
        if by + self.timeouts().connect / SPARED < whole
            && let Ok(dial) = PendingDial::start(&self.destination, whole)
        {
            let outcome = dial.wait(self.clock(), by).map(|outcome| outcome.result);
            return outcome.unwrap_or_else(|| Err(self.leave(dial, refusal)));
        }
        let outcome = self.destination.dial(by.min(whole), &<_>::default());
        let is_late = self.clock().now() >= by.min(whole);
        outcome.map_err(|failure| refusal.filter(|_| is_late).unwrap_or(failure))
    }

    /// One of the dials that no caller waits for, if possible one that has ended. None where
    /// another one is to be begun beside them.
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

    /// Leaves the dial to the next caller. The failure of this one, whose deadline has come.
    fn leave(&self, dial: Arc<PendingDial>, refusal: Option<Failure>) -> Failure {
        let failure = refusal.unwrap_or_else(|| self.late(dial.state()));
        self.unclaimed.lock().push(dial);
        failure
    }

    /// Whether the server shows that it belongs to the one that has shown this at that time, by a
    /// connection that is made until `by`: see [`Judgement::is_of_same_history`].
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

    /// How many connections have failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// A connection failed.
    pub(crate) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is known of the server, and what its connections have in common.
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

#[cfg(test)]
mod tests;
