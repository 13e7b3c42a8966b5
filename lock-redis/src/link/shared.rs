//! [`SharedLink`]: one connection to a server for all threads, made anew when it has died.

use super::duplex::{Collector, Duplex};
use super::{Ask, CallError, Dialer, Errand, Request, Server};
use crate::reply::Reply;
use lock_core::backend::Failure;
use lock_core::{Moment, Signal};
use parking_lot::Mutex;
use std::cell::Cell;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

/// A link that is never borrowed: everybody asks on it at once.
pub(crate) struct SharedLink {
    dialer: Arc<Dialer>,
    state: Mutex<State>,
    collector: Collector,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Duplex>>,
    /// Whether somebody is dialling.
    dialing: bool,
    /// Who waits for that.
    waiting: Vec<Arc<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    signal: Arc<Signal>,
    verdict: Mutex<Option<Verdict>>,
}

/// What those who wait are told.
#[derive(Clone)]
enum Verdict {
    /// Look again.
    Look,
    Failed(Failure),
}

thread_local! {
    /// Where requests are encoded. Taken out while it is in use.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Encodes `request` into the thread's own buffer for as long as `work` takes.
fn encoded<T>(request: &Request<'_>, work: impl FnOnce(&[u8]) -> T) -> T {
    let mut bytes = SCRATCH.try_with(Cell::take).unwrap_or_default();
    bytes.clear();
    request.encode(&mut bytes);
    let outcome = work(&bytes);
    let _ending = SCRATCH.try_with(|kept| kept.set(bytes));
    outcome
}

impl SharedLink {
    pub(crate) fn new(dialer: Arc<Dialer>) -> Self {
        let collector = Collector::new(Arc::clone(dialer.clock()));
        Self { dialer, state: Mutex::default(), collector }
    }

    /// The server at the other end.
    pub(crate) fn server(&self) -> &Arc<Server> {
        self.dialer.server()
    }

    /// Runs `exchange` on the connection, dialling first if there is none that can be used.
    pub(crate) fn exchange<T>(
        &self,
        by: Moment,
        exchange: impl FnOnce(&mut Crowd) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let connection = self.connection(by)?;
        exchange(&mut Crowd { connection, server: Arc::clone(self.dialer.server()) })
    }

    /// Sends a script, by its text the first time on a connection and by its hash from then on, and returns when it has
    /// left: nobody waits here to be told that the server does not know the hash. What came of it is told to the errand: at once if it could not be
    /// sent, and otherwise by whoever reads next, or by a thread that looks after what nobody reads, at the deadline at
    /// the latest.
    pub(crate) fn submit(
        &self,
        script: u32,
        by_text: &Request<'_>,
        by_hash: &Request<'_>,
        by: Moment,
        mut errand: Errand,
    ) {
        let failed = match self.connection(by) {
            Ok(connection) => {
                let sent = if connection.is_to_be_taught(script) {
                    encoded(by_text, |bytes| connection.submit(bytes, by, errand))
                } else {
                    encoded(by_hash, |bytes| {
                        errand.by_hash.extend_from_slice(bytes);
                        connection.submit(bytes, by, errand)
                    })
                };
                match sent {
                    Ok(()) => return self.collector.look_after(&connection),
                    Err((errand, error)) => (errand, Failure::from(error)),
                }
            }
            Err(failure) => (errand, failure),
        };
        let (errand, failure) = failed;
        let _heard = (errand.done)(Err(failure));
    }

    /// Returns when no release is under way here whose answer nobody waits for: what is asked on another connection from then
    /// on overtakes none.
    pub(crate) fn let_errands_go_first(&self, by: Moment) -> Result<(), Failure> {
        const PING: Request<'static> = Request(&[&[b"PING"]]);
        loop {
            let current = self.state.lock().current.clone();
            let Some(connection) = current.filter(|connection| connection.has_errands()) else {
                return Ok(());
            };
            // Answers come in the order of their requests. A connection that ends has told its errands.
            let heard = encoded(&PING, |bytes| connection.call(bytes, by));
            if let Err(CallError::NotSent(error) | CallError::Unknown(error)) = heard
                && self.dialer.clock().now() >= by
            {
                return Err(Failure::NotSent(error));
            }
        }
    }

    /// A connection that can be used. One dials, the others wait for it; each within its own deadline.
    fn connection(&self, by: Moment) -> Result<Arc<Duplex>, Failure> {
        loop {
            let now = self.dialer.clock().now();
            if now >= by {
                let late =
                    self.dialer.server().io_error("take a request", ErrorKind::TimedOut.into());
                return Err(Failure::NotSent(late));
            }
            let mut state = self.state.lock();
            if let Some(connection) = &state.current {
                if connection.is_usable(now, self.dialer.deaths()) {
                    return Ok(Arc::clone(connection));
                }
                state.current = None;
                self.dialer.count_death();
            }
            if !state.dialing {
                state.dialing = true;
                drop(state);
                return self.dial(by);
            }
            let waiting = Arc::new(Waiting::default());
            state.waiting.push(Arc::clone(&waiting));
            drop(state);
            self.dialer.clock().wait(&waiting.signal, by);
            self.state.lock().waiting.retain(|other| !Arc::ptr_eq(other, &waiting));
            // Told at the same moment as the deadline came: that counts.
            match waiting.verdict.lock().take() {
                Some(Verdict::Look) => {}
                Some(Verdict::Failed(failure)) => return Err(failure),
                None => {
                    let late = self.dialer.cannot_connect(ErrorKind::TimedOut.into());
                    return Err(Failure::NotSent(late));
                }
            }
        }
    }

    fn dial(&self, by: Moment) -> Result<Arc<Duplex>, Failure> {
        // Also if dialling panics, the others must not wait for it.
        let mut dialing = Dialing { shared: self, made: None, verdict: Verdict::Look };
        let deaths = self.dialer.deaths();
        let outcome = self.dialer.dial(by).and_then(|link| {
            Duplex::new(link, deaths, self.dialer.command_timeout())
                .map_err(|error| Failure::NotSent(self.dialer.cannot_connect(error)))
        });
        match outcome {
            Ok(connection) => {
                let connection = Arc::new(connection);
                dialing.made = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(failure) => {
                // It may have failed only because the patience of this caller was too short.
                if self.dialer.clock().now() < by {
                    dialing.verdict = Verdict::Failed(failure.clone());
                }
                Err(failure)
            }
        }
    }
}

/// Somebody dials. When that ends, in whatever way, those who wait are told.
struct Dialing<'a> {
    shared: &'a SharedLink,
    made: Option<Arc<Duplex>>,
    verdict: Verdict,
}

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.dialing = false;
        state.current = self.made.take();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in waiting {
            *waiting.verdict.lock() = Some(self.verdict.clone());
            waiting.signal.raise();
        }
    }
}

impl fmt::Debug for SharedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLink")
            .field("server", &format_args!("{}", self.dialer.server()))
            .finish_non_exhaustive()
    }
}

/// One among those who use a connection.
pub(crate) struct Crowd {
    connection: Arc<Duplex>,
    server: Arc<Server>,
}

impl Ask for Crowd {
    fn call(&mut self, request: &Request<'_>, by: Moment) -> Result<Reply, CallError> {
        encoded(request, |bytes| self.connection.call(bytes, by))
    }

    fn server(&self) -> &Arc<Server> {
        &self.server
    }

    fn condemn(&mut self) {
        self.connection.condemn("answers and questions may be out of step");
    }
}
