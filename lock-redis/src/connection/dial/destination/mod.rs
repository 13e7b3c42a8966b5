//! [`Destination`]: one server, and how to connect to it.

mod handshake;

pub(crate) use handshake::Login;

use super::Dialer;
use super::connect::{connect_to_any, prepare};
use super::credentials::ProviderCalls;
use super::resolve::{LookUpError, Resolver};
use crate::connection::ServerError;
use crate::connection::endpoint::{Endpoint, SocketRoute};
use crate::connection::lent::LentPool;
use crate::connection::shutdown::ShutdownRegistry;
use crate::connection::tls::{self, Tls};
use crate::connection::{
    Connection, DialTime, Identity, Introduction, OneStore, Server, ServerGeneration, Transport,
};
use handshake::{Greeting, Requirement};
use lock_core::backend::{Backoff, Failure, no_descriptor, no_thread};
use lock_core::{Clock, Error, Moment};
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The time limits of connecting and of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// The limit for making a connection, with its handshake.
    pub(crate) connect: Duration,
    /// The limit for one request, and so for the acknowledgement of sent bytes.
    pub(crate) command: Duration,
}

/// One server, and everything that a dial to it needs.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(super) server: Arc<Server>,
    pub(super) login: Login,
    provider_calls: ProviderCalls,
    timeouts: Timeouts,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) route: Route,
    /// The exclusive connections, and those that are being made. Shut down when the server is
    /// [retired](Self::retire).
    shutdown: ShutdownRegistry,
    /// The expected server. If given, each connection of [`dial`](Self::dial) begins with a query
    /// of the server's identity.
    pub(super) identity: Option<Arc<Identity>>,
    /// Makes connections of our own to the server of a pool that lends: see `confirm`.
    pub(super) confirming: Option<Arc<Dialer>>,
    pub(super) one_store: OneStore,
    /// The time that the last successful dial took, without its earlier attempts.
    usual: Mutex<Option<Duration>>,
    /// The pauses of all dials while the server loads its data.
    loading: Mutex<Backoff>,
    /// The advice of the topology for the error if no connection can be made.
    advice: Option<String>,
}

/// The most connections of one dial. Another connection is made if the server closes a connection
/// during the handshake, or if a connection leads to a replica or a loading server that is not the
/// known server: behind a load balancer over a master and its replicas, the next connection may
/// lead to the master. With two replicas and a random choice, one in 600 dials finds no master.
const DIALS: u32 = 16;
/// The number of connections of one dial that are made without a pause, if they lead to replicas.
const DIALS_AT_ONCE: u32 = 8;
/// The shortest first pause between further connections of a dial, because a load balancer may need
/// a moment to notice a new master. The pause is random, up to twice as long, and doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause after a connection to a replica, so that all connections of a dial fit into
/// the default connect timeout.
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// The longest pause while a server loads its data, because loading may take minutes and many
/// clients wait. All dials to one server share the pause, which doubles.
const LONGEST_LOADING_PAUSE: Duration = Duration::from_millis(500);

/// The handshakes that are tried, on one connection after the other, while the server closes the
/// connection. The brief handshake comes last, because a connection may also break by chance.
const GREETINGS: [Greeting; 3] = [Greeting::Full, Greeting::Full, Greeting::Brief];

/// The reasons why there is no connection.
pub(super) enum NotDialed {
    /// The connection leads to an unusable server; the next one may lead to another.
    Elsewhere(Failure),
    /// The connection leads to a server that is loading its data, and may be usable afterwards.
    Loading(Failure),
    /// The server has closed the connection during the handshake. A brief handshake may succeed.
    HungUp(Failure),
    Failed(Failure),
}

impl NotDialed {
    fn failure(&self) -> &Failure {
        match self {
            Self::Elsewhere(failure)
            | Self::Loading(failure)
            | Self::HungUp(failure)
            | Self::Failed(failure) => failure,
        }
    }

    /// Returns true if the server has answered with an error.
    fn is_refusal(&self) -> bool {
        use std::error::Error as _;
        let source = self.failure().error().source();
        source.is_some_and(|source| source.is::<ServerError>())
    }
}

impl From<Failure> for NotDialed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The way to the server.
#[derive(Debug)]
pub(super) enum Route {
    Tcp(Resolver, Option<Tls>),
    Unix(SocketRoute),
    /// By the application's pool, which has logged in.
    #[cfg_attr(
        not(feature = "redis-rs"),
        expect(dead_code, reason = "the feature alone makes it")
    )]
    Lent(LentPool),
}

/// The step that a dial is waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum DialStep {
    #[default]
    Credentials,
    LookUp,
    Connecting,
    Tls,
    Login,
    /// The wait for a connection of the application's pool.
    Lending,
}

/// The progress of a dial.
#[derive(Debug, Default)]
pub(super) struct DialState {
    step: Mutex<DialStep>,
    /// The reason why the previous connection of the dial was not used; `None` during the first
    /// connection. Returned instead of a time-out, because the reason says more.
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
            // Replaced by `lent_by`.
            Endpoint::Lent => Route::Unix(SocketRoute::new(Path::new(""))),
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
            confirming: None,
            one_store: OneStore::Off,
            usual: Mutex::default(),
            loading: Mutex::new(Backoff::new(FIRST_PAUSE, LONGEST_LOADING_PAUSE)),
            advice: None,
        }
    }

    /// Returns the destination of a test's listener, without a login.
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

    /// Returns this destination with an expected server: each connection of [`dial`](Self::dial)
    /// begins with a query of the server's identity.
    pub(crate) fn identified(self, identity: impl Into<Arc<Identity>>) -> Self {
        Self {
            identity: Some(identity.into()),
            ..self
        }
    }

    /// Returns this destination with connections of the application's pool, whose server is
    /// confirmed by `confirming`, if it is known.
    #[cfg(feature = "redis-rs")]
    pub(crate) fn lent_by(self, pool: LentPool, confirming: Option<Arc<Dialer>>) -> Self {
        if confirming.is_none() {
            // Only the pool knows the user, whom errors name.
            self.server.set_user(Some("THE_USER_OF_THE_POOL"));
        }
        Self {
            route: Route::Lent(pool),
            confirming,
            ..self
        }
    }

    /// Returns the application's pool, if connections are lent by one.
    pub(crate) fn lender(&self) -> Option<&LentPool> {
        match &self.route {
            Route::Lent(pool) => Some(pool),
            Route::Tcp(..) | Route::Unix(_) => None,
        }
    }

    /// Returns this destination with a check, at the start of each connection, that all keys are in
    /// one store.
    pub(crate) fn proving(self, one_store: OneStore) -> Self {
        Self { one_store, ..self }
    }

    /// Returns this destination with this advice in the errors if no connection can be made.
    pub(crate) fn advising(self, advice: String) -> Self {
        Self {
            advice: Some(advice),
            ..self
        }
    }

    /// Returns the expected server, if there is one.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_deref()
    }

    /// Returns how often the open connections became invalid, for example because another server
    /// was accepted at this address, or the server lost its role as master.
    pub(crate) fn changes(&self) -> u64 {
        self.identity().map_or(0, Identity::changes)
    }

    /// Records the properties that the server of an open connection has reported.
    pub(crate) fn note(&self, generation: &ServerGeneration, introduction: Introduction) {
        if let Some(identity) = &self.identity {
            identity.note(&self.server, generation, introduction);
        }
    }

    /// Shuts down the exclusive connections, so that no caller waits on them any longer, and the
    /// connections that are being made. New dials fail.
    pub(crate) fn retire(&self) {
        self.shutdown.shut();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.shutdown.is_shut()
    }

    /// Returns the error of requests to a retired server.
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

    /// Returns the time limit of a request.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.timeouts.command
    }

    /// Returns the time that the last successful dial took, if there was one.
    pub(super) fn usual(&self) -> Option<Duration> {
        *self.usual.lock()
    }

    /// Makes a connection until `by`, and records its progress in `state`.
    pub(super) fn dial(&self, by: Moment, state: &DialState) -> Result<Connection, Failure> {
        let (mut dials, mut pauses) = (1, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        let mut greetings = GREETINGS.iter();
        let mut greeting = *greetings.next().expect("there are three");
        loop {
            let began = self.clock.now();
            let dialed = self.dial_once((Requirement::Usable, greeting), by, state);
            let (failure, pause) = match dialed {
                Ok(connection) => {
                    *self.usual.lock() = Some(self.clock.now().since(began));
                    self.loading.lock().reset();
                    return Ok(connection);
                }
                Err(_) if self.is_retired() => return Err(Failure::NotSent(self.retired())),
                Err(NotDialed::Elsewhere(failure)) => {
                    // The server has answered `INFO`, so no brief handshake follows.
                    greetings = GREETINGS[..0].iter();
                    let pause = match dials < DIALS_AT_ONCE {
                        true => Duration::ZERO,
                        false => pauses.next(),
                    };
                    (failure, pause)
                }
                Err(NotDialed::Loading(failure)) => {
                    greetings = GREETINGS[..0].iter();
                    (failure, self.loading.lock().next())
                }
                Err(NotDialed::HungUp(failure)) if greetings.len() > 0 => {
                    greeting = *greetings.next().expect("one is left");
                    (failure, Duration::ZERO)
                }
                Err(NotDialed::HungUp(failure) | NotDialed::Failed(failure)) => {
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

    /// Makes a connection to whichever server is there, only to query its properties.
    pub(crate) fn dial_any(&self, by: Moment) -> Result<Connection, Failure> {
        let by = by.min(self.clock.now() + self.timeouts.connect);
        let dial = |greeting| {
            let extent = (Requirement::Nothing, greeting);
            self.dial_once(extent, by, &<_>::default())
        };
        let [first, again, brief] = GREETINGS;
        let mut dialed = dial(first);
        for greeting in [again, brief] {
            if matches!(dialed, Err(NotDialed::HungUp(_))) {
                dialed = dial(greeting);
            }
        }
        dialed.map_err(|not_dialed| not_dialed.failure().clone())
    }

    fn dial_once(
        &self,
        extent: (Requirement, Greeting),
        by: Moment,
        state: &DialState,
    ) -> Result<Connection, NotDialed> {
        if let Route::Lent(pool) = &self.route {
            return self.borrow(pool, extent.0, by, state);
        }
        let time = DialTime::until(&*self.clock, by).unless(self.shutdown.flag());
        *state.step.lock() = DialStep::Credentials;
        // Before connecting: otherwise the server could close the connection as silent while the
        // credentials are read.
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
        self.handshake(&mut connection, &credentials, extent, by)?;
        transport
            .limit_unacknowledged(self.timeouts.command)
            .map_err(|error| not_connected(self.cannot_connect(error)))?;
        Ok(connection)
    }

    /// Borrows a connection of the application's pool. A connection that this client has not used
    /// before begins with a handshake.
    ///
    /// A connection that is dead, out of step, or leads to a server that was left is closed, and
    /// the next one is borrowed: the pool may be full of them. So is one whose server refuses,
    /// because the pool would lend it first again.
    fn borrow(
        &self,
        pool: &LentPool,
        requirement: Requirement,
        by: Moment,
        state: &DialState,
    ) -> Result<Connection, NotDialed> {
        let mut skipped = 0;
        loop {
            if self.shutdown.is_shut() {
                return Err(Failure::NotSent(self.retired()).into());
            }
            *state.step.lock() = DialStep::Lending;
            pool.close_idle(self.changes());
            let lent = pool.borrow(&*self.clock, by).map_err(Failure::NotSent)?;
            *state.step.lock() = DialStep::Login;
            let (server, clock) = (Arc::clone(&self.server), Arc::clone(&self.clock));
            let (mut connection, is_known) = Connection::lent(lent, server, clock);
            let accepted = if is_known {
                let checked = connection.check_lent(by).map_err(Failure::from);
                checked.map_err(|failure| Failure::NotSent(failure.into_error()).into())
            } else {
                let (no_login, extent) = (<_>::default(), (requirement, Greeting::Full));
                self.handshake(&mut connection, &no_login, extent, by)
            };
            let not_dialed = match accepted {
                Ok(()) if connection.is_open() => return Ok(connection),
                Ok(()) => Failure::NotSent(self.server.superseded()).into(),
                // A brief greeting is for a connection of our own alone.
                Err(NotDialed::HungUp(failure)) => failure.into(),
                Err(not_dialed) => not_dialed,
            };
            let is_refused = connection.is_open() || not_dialed.is_refusal();
            connection.close_link();
            if is_refused || skipped == pool.size() || self.clock.now() >= by {
                return Err(not_dialed);
            }
            skipped += 1;
        }
    }

    /// Returns the addresses of the server; none if they are unknown.
    pub(crate) fn resolve(&self, by: Moment) -> Vec<SocketAddr> {
        let time = DialTime::until(&*self.clock, by).unless(self.shutdown.flag());
        match &self.route {
            Route::Tcp(resolver, _) => resolver.resolve(&time).unwrap_or_default(),
            Route::Unix(_) | Route::Lent(_) => Vec::new(),
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
            Route::Lent(_) => unreachable!("its connections are borrowed, and not made"),
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
            // Until the handshake has ended, the limit is at least that of the whole dial: no
            // request of the caller has been sent yet.
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

    /// Returns the advice as the end of a message.
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

    /// Returns the failure of a caller whose deadline has passed while a dial is in this state.
    pub(super) fn late(&self, state: &DialState) -> Failure {
        let step = match (*state.step.lock(), self.lender()) {
            // Not begun yet.
            (DialStep::Credentials, Some(_)) => DialStep::Lending,
            (step, _) => step,
        };
        let late = || Failure::NotSent(self.late_in(step));
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
                Route::Lent(_) => self.server.io_error("answer", late()),
            },
            DialStep::Lending => match self.lender() {
                Some(pool) => pool.late(None),
                None => self.server.io_error("answer", late()),
            },
            DialStep::Tls => tls::unfinished(&self.server, late()),
            DialStep::Login => self.server.io_error("answer", late()),
        }
    }
}

/// Returns the failure of an attempt to connect: [`Failure::Refused`] if no other attempt can
/// succeed.
pub(super) fn not_connected(error: Error) -> Failure {
    if error.is_configuration() {
        Failure::Refused(error)
    } else {
        Failure::NotSent(error)
    }
}
