//! [`Destination`]: one server, and how a connection to it is made.

mod handshake;

pub(crate) use handshake::Login;

use super::connect::{connect_to_any, prepare};
use super::credentials::ProviderCalls;
use super::resolve::{LookUpError, Resolver};
use crate::connection::endpoint::{Endpoint, SocketRoute};
use crate::connection::shutdown::ShutdownRegistry;
use crate::connection::tls::{self, Tls};
use crate::connection::{
    Connection, DialTime, Identity, Introduction, OneStore, Server, ServerGeneration, Transport,
};
use handshake::Requirement;
use lock_core::backend::{Backoff, Failure, no_descriptor, no_thread};
use lock_core::{Clock, Error, Moment};
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The bounds of connecting and of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Of making a connection, with its handshake.
    pub(crate) connect: Duration,
    /// Of one request, and so of the time until what was sent is acknowledged.
    pub(crate) command: Duration,
}

/// One server, and all that dials to it need.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(super) server: Arc<Server>,
    pub(super) login: Login,
    provider_calls: ProviderCalls,
    timeouts: Timeouts,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) route: Route,
    /// The exclusive connections. Shut when the server is [retired](Self::retire).
    shutdown: ShutdownRegistry,
    /// Which server belongs there, where each connection begins by asking for it.
    pub(super) identity: Option<Identity>,
    pub(super) one_store: OneStore,
    /// How long the last connection took to make.
    usual: Mutex<Option<Duration>>,
    /// The pauses of all dials while the server reads its data.
    loading: Mutex<Backoff>,
    /// What to do where it cannot be connected to, as far as it depends on the topology.
    advice: Option<String>,
}

/// The number of times that a connection is made anew where it leads to a replica, or to a server
/// that reads its data: behind a load balancer over a master and its replicas, the next one may
/// lead to the master. Of two replicas and a master, balanced at random, one in 600 such series
/// finds no master.
const DIALS: u32 = 16;
/// How many of them are made at once; the others after pauses, which double.
const DIALS_AT_ONCE: u32 = 8;
/// The first pause between the other ones, because a load balancer may need a moment to notice a
/// new master. It doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest such pause, so that all dials fit into the default connect timeout.
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// The longest pause, doubled over all dials of the client, while a server reads its data, because
/// that may take minutes and many clients wait.
const LONGEST_LOADING_PAUSE: Duration = Duration::from_millis(500);

/// Why there is no connection.
pub(super) enum NotDialed {
    /// The next one may lead to another server.
    Elsewhere(Failure),
    /// The same, and this one will be ready when it has read its data.
    Loading(Failure),
    Failed(Failure),
}

impl From<Failure> for NotDialed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// How the server is reached.
#[derive(Debug)]
pub(super) enum Route {
    Tcp(Resolver, Option<Tls>),
    Unix(SocketRoute),
}

/// What a dial is waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum DialStep {
    #[default]
    Credentials,
    LookUp,
    Connecting,
    Tls,
    Login,
}

/// How far a dial has come.
#[derive(Debug, Default)]
pub(super) struct DialState {
    step: Mutex<DialStep>,
    /// Why the last connection was of no use, if this is not the first. A server's word says more
    /// than a time-out does.
    refusal: Mutex<Option<Failure>>,
}

impl DialState {
    fn refusal(&self) -> Option<Failure> {
        self.refusal.lock().clone()
    }
}

impl Destination {
    pub(crate) fn new(
        server: Server,
        tls: Option<Tls>,
        login: Login,
        timeouts: Timeouts,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let route = match &server.endpoint {
            Endpoint::Tcp { host, port } => Route::Tcp(Resolver::new(host, *port), tls),
            Endpoint::Unix(path) => Route::Unix(SocketRoute::new(path)),
        };
        Self {
            server: Arc::new(server),
            login,
            provider_calls: ProviderCalls::new(),
            timeouts,
            clock,
            route,
            shutdown: ShutdownRegistry::default(),
            identity: None,
            one_store: OneStore::Off,
            usual: Mutex::default(),
            loading: Mutex::new(Backoff::new(FIRST_PAUSE, LONGEST_LOADING_PAUSE)),
            advice: None,
        }
    }

    /// A test's listener, without a login.
    #[cfg(test)]
    pub(crate) fn of(
        listener: &std::net::TcpListener,
        connect: Duration,
        command: Duration,
    ) -> Self {
        let port = listener.local_addr().unwrap().port();
        let server = Server::new(Endpoint::tcp("127.0.0.1", port), None);
        let login = Login {
            secrets: <_>::default(),
            database: 0,
            client_name: String::new(),
        };
        let clock = Arc::new(lock_core::SystemClock);
        Self::new(server, None, login, Timeouts { connect, command }, clock)
    }

    /// The same, where each connection begins by asking which server it leads to.
    pub(crate) fn identified(self, identity: Identity) -> Self {
        Self {
            identity: Some(identity),
            ..self
        }
    }

    /// The same, where each connection begins with what proves that all keys are in one store.
    pub(crate) fn proving(self, one_store: OneStore) -> Self {
        Self { one_store, ..self }
    }

    /// The same, with this advice in the errors where no connection can be made.
    pub(crate) fn advising(self, advice: String) -> Self {
        Self {
            advice: Some(advice),
            ..self
        }
    }

    /// Which server belongs there, where that is asked.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// How often another server has taken the place of the one before.
    pub(crate) fn changes(&self) -> u64 {
        self.identity.as_ref().map_or(0, Identity::changes)
    }

    /// The server of a standing connection shows this of itself.
    pub(crate) fn note(&self, generation: &ServerGeneration, introduction: Introduction) {
        if let Some(identity) = &self.identity {
            identity.note(&self.server, generation, introduction);
        }
    }

    /// Ends the exclusive connections, on which no caller waits any longer, and the dials under
    /// way, and makes no new ones.
    pub(crate) fn retire(&self) {
        self.shutdown.shut();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.shutdown.is_shut()
    }

    /// The error of requests to a server that was retired.
    pub(crate) fn retired(&self) -> Error {
        Error::unavailable(format!("{} is not the master any more", self.server))
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// How long a request may take.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.timeouts.command
    }

    /// How long the last connection took to make, if there was one.
    pub(super) fn usual(&self) -> Option<Duration> {
        *self.usual.lock()
    }

    /// Makes a connection until `by`, and notes in `state` how far it has come.
    pub(super) fn dial(&self, by: Moment, state: &DialState) -> Result<Connection, Failure> {
        let (mut dials, mut pauses) = (1, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        loop {
            let began = self.clock.now();
            let (failure, pause) = match self.dial_once(Requirement::Usable, by, state) {
                Ok(connection) => {
                    *self.usual.lock() = Some(self.clock.now().since(began));
                    self.loading.lock().reset();
                    return Ok(connection);
                }
                Err(_) if self.is_retired() => return Err(Failure::NotSent(self.retired())),
                Err(NotDialed::Elsewhere(failure)) if dials < DIALS_AT_ONCE => {
                    (failure, Duration::ZERO)
                }
                Err(NotDialed::Elsewhere(failure)) => (failure, pauses.next()),
                Err(NotDialed::Loading(failure)) => (failure, self.loading.lock().next()),
                Err(NotDialed::Failed(failure)) => {
                    let is_late = self.clock.now() >= by;
                    return Err(state.refusal().filter(|_| is_late).unwrap_or(failure));
                }
            };
            dials += 1;
            let next = self.clock.now() + pause;
            if dials > DIALS || next >= by {
                return Err(failure);
            }
            *state.refusal.lock() = Some(failure);
            if !pause.is_zero() {
                self.clock.wait(&Arc::default(), next);
            }
        }
    }

    /// The same to whatever server is there: to ask what it is, and for nothing else.
    pub(crate) fn dial_any(&self, by: Moment) -> Result<Connection, Failure> {
        let by = by.min(self.clock.now() + self.timeouts.connect);
        self.dial_once(Requirement::Nothing, by, &<_>::default())
            .map_err(|not_dialed| match not_dialed {
                NotDialed::Elsewhere(failure)
                | NotDialed::Loading(failure)
                | NotDialed::Failed(failure) => failure,
            })
    }

    fn dial_once(
        &self,
        requirement: Requirement,
        by: Moment,
        state: &DialState,
    ) -> Result<Connection, NotDialed> {
        let time = DialTime::until(&*self.clock, by).unless(self.shutdown.flag());
        *state.step.lock() = DialStep::Credentials;
        // First: the time it takes must not count as silence on the connection.
        let credentials = self
            .login
            .secrets
            .resolve(&self.provider_calls, &self.server, &time);
        let credentials = credentials.map_err(not_connected)?;
        self.server.set_user(credentials.user.as_deref());
        let transport = self.connect(&time, state).map_err(not_connected)?;
        let transport = Arc::new(transport.counted(self.server.notices.connected()));
        if !self.shutdown.register(&transport) {
            return Err(Failure::NotSent(self.retired()).into());
        }
        let (server, clock) = (Arc::clone(&self.server), Arc::clone(&self.clock));
        let mut connection = Connection::new(Arc::clone(&transport), server, clock);
        *state.step.lock() = DialStep::Tls;
        connection.handshake_tls(by).map_err(|error| {
            if let Route::Tcp(_, Some(tls)) = &self.route {
                tls.failed(&error);
            }
            not_connected(tls::unfinished(&self.server, error))
        })?;
        *state.step.lock() = DialStep::Login;
        self.handshake(&mut connection, &credentials, requirement, by)?;
        transport
            .limit_unacknowledged(self.timeouts.command)
            .map_err(|error| not_connected(self.cannot_connect(error)))?;
        Ok(connection)
    }

    /// The addresses of the server; none where they are unknown.
    pub(crate) fn resolve(&self, by: Moment) -> Vec<SocketAddr> {
        let time = DialTime::until(&*self.clock, by).unless(self.shutdown.flag());
        match &self.route {
            Route::Tcp(resolver, _) => resolver.resolve(&time).unwrap_or_default(),
            Route::Unix(_) => Vec::new(),
        }
    }

    fn connect(&self, time: &DialTime<'_>, state: &DialState) -> Result<Transport, Error> {
        let (resolver, tls) = match &self.route {
            Route::Tcp(resolver, tls) => (resolver, tls),
            Route::Unix(route) => {
                *state.step.lock() = DialStep::Connecting;
                let stream = route.connect(time)?;
                return Transport::new(stream, None).map_err(|error| self.cannot_connect(error));
            }
        };
        *state.step.lock() = DialStep::LookUp;
        let addresses = resolver
            .resolve(time)
            .map_err(|error| self.not_found(error))?;
        *state.step.lock() = DialStep::Connecting;
        let connect = || {
            let session = tls
                .as_ref()
                .map(|tls| tls.session(&self.server, time))
                .transpose()?;
            let stream = connect_to_any(&addresses, time)?;
            // The handshake has the time of the dial, and no request has left yet.
            prepare(&stream, self.timeouts.connect.max(self.timeouts.command))?;
            Transport::new(stream, session)
        };
        connect().map_err(|error| self.cannot_connect(error))
    }

    fn not_found(&self, error: LookUpError) -> Error {
        let attempt = format!("cannot find the address of {}", self.server);
        match error {
            LookUpError::NoThread(failure) => no_thread(&attempt, failure),
            LookUpError::Failed(failure) => {
                let mend = no_descriptor(&failure).unwrap_or("is the host name right?");
                let advice = self.advice();
                Error::unavailable(format!("{attempt}: {mend}{advice}")).with_source(failure)
            }
        }
    }

    /// The advice, as the end of a message.
    fn advice(&self) -> String {
        self.advice
            .as_ref()
            .map_or_else(String::new, |advice| format!(" ({advice})"))
    }

    pub(crate) fn cannot_connect(&self, error: io::Error) -> Error {
        let server = &self.server;
        let message = match (no_descriptor(&error), error.kind()) {
            (Some(mend), _) => format!("cannot connect to {server}: {mend}"),
            (None, ErrorKind::TimedOut) => format!(
                "no connection to {server} in time: is it up, and no firewall between?{}",
                self.advice()
            ),
            (None, _) => format!(
                "cannot connect to {server}: is a Redis server running there?{}",
                self.advice()
            ),
        };
        Error::unavailable(message).with_source(error)
    }

    /// The failure of a caller whose deadline has come while a dial had come so far.
    pub(super) fn late(&self, state: &DialState) -> Failure {
        let late = || Failure::NotSent(self.late_in(*state.step.lock()));
        state.refusal().unwrap_or_else(late)
    }

    fn late_in(&self, step: DialStep) -> Error {
        let late = || io::Error::from(ErrorKind::TimedOut);
        match step {
            DialStep::Credentials => self.login.secrets.late(&self.server),
            DialStep::LookUp => self.not_found(LookUpError::late()),
            DialStep::Connecting => match &self.route {
                Route::Tcp(..) => self.cannot_connect(late()),
                Route::Unix(route) => route.explain(None, late()),
            },
            DialStep::Tls => tls::unfinished(&self.server, late()),
            DialStep::Login => self.server.io_error("answer", late()),
        }
    }
}

/// The failure of an attempt to connect: refused where no other attempt can succeed.
pub(super) fn not_connected(error: Error) -> Failure {
    if error.is_configuration() {
        Failure::Refused(error)
    } else {
        Failure::NotSent(error)
    }
}
