//! [`Dialer`]: makes connections. Look-up, connecting and [handshake] share one deadline.

mod background_call;
mod credentials;
mod handshake;
mod identity;
mod resolve;

use credentials::ProviderCalls;
pub(crate) use credentials::{CredentialsSource, PasswordSource};
pub(crate) use handshake::Login;
pub(crate) use identity::{Identity, IdentityKind, ServerGeneration};

use super::endpoint::{Endpoint, connect_to_socket};
use super::shutdown::ShutdownRegistry;
use super::tls::{self, Tls};
use super::{Connection, Transport};
use lock_core::backend::{Failure, no_descriptor, no_thread};
use lock_core::{Clock, Error, Moment, Notices, WarningKind};
use parking_lot::Mutex;
use resolve::{LookUpError, Resolver};
use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Which server, for messages: prints as `host:port`, or as the path of its socket, and nothing else.
#[derive(Debug)]
pub(crate) struct Server {
    place: Endpoint,
    /// Whether TLS is spoken with it.
    is_tls: bool,
    /// Who we are there. Written at each handshake.
    user: Mutex<Option<String>>,
    notices: Notices,
    /// The warnings that were reported and still apply; and whether there are any.
    warned: Mutex<Vec<Reported>>,
    has_warned: AtomicBool,
}

/// A warning that was reported and still applies.
#[derive(Debug)]
struct Reported {
    kind: WarningKind,
    cause: String,
    /// The channel that was refused, where the server allows some channels and not others.
    channel: Option<String>,
}

/// Which warning of a kind it is. Each is reported once until it no longer applies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cause {
    /// What the administrator has to change. Empty for a kind that has one cause only.
    pub(crate) change: String,
    /// The channel that was refused, where the server allows some channels and not others.
    pub(crate) channel: Option<String>,
}

/// The bounds that a connection is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// On making a connection, with everything that belongs to it.
    pub(crate) connect: Duration,
    /// On one request; and so on how long what was sent may stay unacknowledged.
    pub(crate) command: Duration,
}

/// Makes connections to one server.
#[derive(Debug)]
pub(crate) struct Dialer {
    server: Arc<Server>,
    login: Login,
    /// Of the provider of credentials.
    calls: ProviderCalls,
    bounds: Timeouts,
    clock: Arc<dyn Clock>,
    route: Route,
    /// For a server that may be [retired](Self::retire).
    shutdown: Option<ShutdownRegistry>,
    /// Each connection begins with the question whether the server is a master.
    must_be_master: bool,
    /// Which server belongs there, where that is asked.
    identity: Option<Identity>,
    /// How many connections have died. Written by whoever saw one die; read by all, to look at their own before they trust
    /// it: after a restart of the server one request is lost, and not one for each connection.
    failures: AtomicU64,
}

/// How the server is reached.
#[derive(Debug)]
enum Route {
    Tcp(Resolver, Option<Tls>),
    Unix(PathBuf),
}

impl Server {
    pub(crate) fn new(place: Endpoint, user: Option<&str>) -> Self {
        let user = Mutex::new(user.map(str::to_owned));
        let (notices, warned) = (Notices::default(), Mutex::default());
        let has_warned = AtomicBool::new(false);
        Self { place, is_tls: false, user, notices, warned, has_warned }
    }

    /// The same, spoken with over TLS or not.
    pub(crate) fn over_tls(self, is_tls: bool) -> Self {
        Self { is_tls, ..self }
    }

    /// The same, where what should be mended there is told here.
    pub(crate) fn warning(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }

    /// The user we are there.
    pub(crate) fn user(&self) -> String {
        self.user.lock().clone().unwrap_or_else(|| "default".to_owned())
    }

    /// From now on we are this user there.
    fn set_user(&self, user: Option<&str>) {
        let mut known = self.user.lock();
        if known.as_deref() != user {
            *known = user.map(str::to_owned);
            // Permissions belong to a user: another user's refusals say nothing of this one.
            self.is_mended(WarningKind::NotPublished);
            self.is_mended(WarningKind::NotSubscribed);
        }
    }

    /// The URL that begins with this scheme, where it is one without TLS, and names this server.
    pub(crate) fn url(&self, scheme: &str) -> String {
        match (&self.place, scheme.strip_prefix("redis")) {
            (Endpoint::Unix(_), Some("")) => format!("redis+unix://{self}"),
            (_, Some(rest)) if self.is_tls => format!("rediss{rest}://{self}"),
            _ => format!("{scheme}://{self}"),
        }
    }

    /// Reports a warning of a kind that has one cause, once until it [is mended](Self::is_mended).
    pub(crate) fn warn(&self, kind: WarningKind, message: impl FnOnce() -> String) {
        self.warn_of(kind, Cause::default(), message);
    }

    /// Reports a warning, once for each cause until it no longer applies.
    pub(crate) fn warn_of(
        &self,
        kind: WarningKind,
        cause: Cause,
        message: impl FnOnce() -> String,
    ) {
        let mut warned = self.warned.lock();
        if warned.iter().any(|known| known.kind == kind && known.cause == cause.change) {
            return;
        }
        warned.push(Reported { kind, cause: cause.change, channel: cause.channel });
        self.has_warned.store(true, Ordering::Relaxed);
        drop(warned);
        self.notices.warn(kind, message);
    }

    /// Whether a warning of this kind was reported and still applies.
    pub(crate) fn is_told_of(&self, kind: WarningKind) -> bool {
        self.has_warned.load(Ordering::Relaxed)
            && self.warned.lock().iter().any(|known| known.kind == kind)
    }

    /// No warning of this kind applies any more.
    pub(crate) fn is_mended(&self, kind: WarningKind) {
        self.retain_warnings(|known| known.kind != kind);
    }

    /// The server served this channel. The refusal of another channel still applies.
    pub(crate) fn is_served(&self, kind: WarningKind, channel: impl FnOnce() -> String) {
        if self.has_warned.load(Ordering::Relaxed) {
            let served = channel();
            self.retain_warnings(|known| {
                known.kind != kind || known.channel.as_ref().is_some_and(|other| *other != served)
            });
        }
    }

    fn retain_warnings(&self, still_applies: impl FnMut(&Reported) -> bool) {
        if self.has_warned.load(Ordering::Relaxed) {
            let mut warned = self.warned.lock();
            warned.retain(still_applies);
            self.has_warned.store(!warned.is_empty(), Ordering::Relaxed);
        }
    }

    /// `failure` kept this server from doing `what`.
    pub(super) fn io_error(&self, what: &str, failure: io::Error) -> Error {
        if let Some(error) = tls::explain(self, &failure) {
            return error;
        }
        let message = match failure.kind() {
            ErrorKind::TimedOut => format!("{self} did not {what} in time"),
            _ => format!("the connection to {self} broke before it could {what}"),
        };
        Error::unavailable(message).with_source(failure)
    }

    /// Another server is used at this address since a request left.
    pub(in crate::connection) fn superseded(&self) -> Error {
        Error::unavailable(format!(
            "another server answers at {self} since, and what the one before it says does not count"
        ))
    }

    /// What came from this server is no answer.
    pub(crate) fn garbage(&self, why: &str) -> Error {
        Error::unavailable(format!(
            "{self} answered with something that is no answer ({why}): is this the port of a Redis server?"
        ))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl Dialer {
    pub(crate) fn new(
        server: Server,
        tls: Option<Tls>,
        login: Login,
        bounds: Timeouts,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let route = match &server.place {
            Endpoint::Tcp { host, port } => Route::Tcp(Resolver::new(host, *port), tls),
            Endpoint::Unix(path) => Route::Unix(path.clone()),
        };
        let (server, failures) = (Arc::new(server), AtomicU64::new(0));
        Self {
            server,
            login,
            calls: ProviderCalls::new("distlock-credentials"),
            bounds,
            clock,
            route,
            shutdown: None,
            must_be_master: false,
            identity: None,
            failures,
        }
    }

    /// The same to a server that must say that it is a master, for as long as somebody else holds it for one: see
    /// [`retire`](Self::retire).
    pub(crate) fn requiring_master(self) -> Self {
        Self { must_be_master: true, ..self.retirable() }
    }

    /// The same to a server that may leave: see [`retire`](Self::retire).
    pub(crate) fn retirable(mut self) -> Self {
        self.shutdown = Some(ShutdownRegistry::default());
        self
    }

    /// The same, where each connection begins with the question which server answers.
    pub(crate) fn identified(self, identity: Identity) -> Self {
        Self { identity: Some(identity), ..self }
    }

    /// Which server belongs there, where that is asked.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// How often another server has taken the place of the one before.
    pub(crate) fn changes(&self) -> u64 {
        self.identity.as_ref().map_or(0, Identity::changes)
    }

    /// Ends the connections that one thread uses at a time, so that whoever waits on one does so no longer, and makes no new
    /// ones.
    pub(crate) fn retire(&self) {
        if let Some(shutdown) = &self.shutdown {
            shutdown.shut();
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.shutdown.as_ref().is_some_and(ShutdownRegistry::is_shut)
    }

    /// What is told to those who wait for a server that was retired.
    pub(crate) fn retired(&self) -> Error {
        Error::unavailable(format!("{} is not the master any more", self.server))
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// How long a request may take.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.bounds.command
    }

    /// How many connections have died so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// A connection died.
    pub(crate) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a connection until `by`, and never takes longer than the connect timeout.
    ///
    /// What fails here was never sent. Only where the server answered that it will not have us, whoever asks and
    /// however often, is it [`Failure::Refused`].
    pub(crate) fn dial(&self, by: Moment) -> Result<Connection, Failure> {
        let by = by.min(self.clock.now() + self.bounds.connect);
        // First: what it takes shall not count as silence of ours on the connection.
        let us = self.login.secrets.now(&self.calls, &self.server, &*self.clock, by);
        let us = us.map_err(not_connected)?;
        self.server.set_user(us.user.as_deref());
        let transport = Arc::new(self.connect(by).map_err(not_connected)?);
        if self.shutdown.as_ref().is_some_and(|shutdown| !shutdown.register(&transport)) {
            return Err(Failure::NotSent(self.retired()));
        }
        let (server, clock) = (Arc::clone(&self.server), Arc::clone(&self.clock));
        let mut connection = Connection::new(transport, server, clock);
        connection.handshake_tls(by).map_err(|error| {
            if let Route::Tcp(_, Some(tls)) = &self.route {
                tls.failed(&error);
            }
            not_connected(tls::unfinished(&self.server, error))
        })?;
        self.handshake(&mut connection, &us, by)?;
        Ok(connection)
    }

    fn connect(&self, by: Moment) -> Result<Transport, Error> {
        let (resolver, tls) = match &self.route {
            Route::Tcp(resolver, tls) => (resolver, tls),
            Route::Unix(path) => {
                let stream = connect_to_socket(path, &*self.clock, by)?;
                return Transport::new(stream, None).map_err(|error| self.cannot_connect(error));
            }
        };
        let addresses =
            resolver.resolve(&*self.clock, by).map_err(|error| self.not_found(error))?;
        let connect = || {
            let stream = connect_to_any(&addresses, &*self.clock, by)?;
            prepare(&stream, self.bounds.command)?;
            let session = tls.as_ref().map(|tls| tls.session(&self.server)).transpose()?;
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
                Error::unavailable(format!("{attempt}: {mend}")).with_source(failure)
            }
        }
    }

    pub(super) fn cannot_connect(&self, error: io::Error) -> Error {
        let server = &self.server;
        let message = match (no_descriptor(&error), error.kind()) {
            (Some(mend), _) => format!("cannot connect to {server}: {mend}"),
            (None, ErrorKind::TimedOut) => {
                format!("no connection to {server} in time: is it up, and no firewall between?")
            }
            (None, _) => format!("cannot connect to {server}: is a Redis server running there?"),
        };
        Error::unavailable(message).with_source(error)
    }
}

/// Connects to the first of `addresses` that can be had until `by`; otherwise says what the last one failed with.
fn connect_to_any(
    addresses: &[SocketAddr],
    clock: &dyn Clock,
    by: Moment,
) -> io::Result<TcpStream> {
    let mut trouble = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // What is left is divided, so that a first address that swallows everything leaves time for the next.
        let waiting = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match connect_to(address, by.since(clock.now()) / waiting) {
            Ok(stream) => return Ok(stream),
            Err(error) => trouble = error,
        }
    }
    Err(trouble)
}

fn connect_to(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    if timeout.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    TcpStream::connect_timeout(address, timeout)
}

/// Sets what a connection of ours needs. Nothing that was sent stays unacknowledged for longer than `unacknowledged`.
fn prepare(stream: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    // Requests are small and written whole: waiting for more to send would only cost time.
    stream.set_nodelay(true)?;
    // For a server that vanished without a word while a connection idled. Requests have their own deadlines.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10));
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    // For one that vanished with a request on the way: without it the kernel sends that again for a quarter of an hour,
    // and a socket that was closed at its deadline lives on for as long.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(unacknowledged))?;
    #[cfg(not(target_os = "linux"))]
    let _ = unacknowledged;
    Ok(())
}

/// The failure of an attempt that never came to a connection. One that no other attempt will fare better than is
/// [`Failure::Refused`].
fn not_connected(error: Error) -> Failure {
    if error.is_configuration() { Failure::Refused(error) } else { Failure::NotSent(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::SystemClock;
    use std::net::TcpListener;

    #[test]
    fn an_address_that_swallows_everything_leaves_time_for_the_next() {
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        // A listener whose queue is full drops what comes, as a firewall would.
        let hole =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        hole.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        hole.listen(0).unwrap();
        let hole_address = hole.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&hole_address, Duration::from_millis(50))
        {
            queued.push(stream);
        }
        let by = SystemClock.now() + Duration::from_millis(300);
        let addresses = [hole_address, good.local_addr().unwrap()];
        let stream = connect_to_any(&addresses, &SystemClock, by).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        let error = connect_to_any(&[hole_address; 2], &SystemClock, by).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_was_sent_is_acknowledged_within_the_command_timeout_or_the_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server =
            Server::new(Endpoint::tcp("127.0.0.1", listener.local_addr().unwrap().port()), None);
        let login = Login {
            secrets: CredentialsSource::default(),
            database: 0,
            client_name: String::new(),
        };
        let command = Duration::from_millis(1_234);
        let bounds = Timeouts { connect: Duration::from_secs(5), command };
        let dialer = Dialer::new(server, None, login, bounds, Arc::new(SystemClock));
        let transport = dialer.connect(Moment::NEVER).unwrap();
        let socket = transport.socket();
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(command));
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
    }
}
