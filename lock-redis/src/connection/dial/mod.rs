//! [`Dialer`]: makes connections. Look-up, connecting and [handshake] share one deadline.

mod background_call;
mod credentials;
mod handshake;
mod resolve;

use credentials::ProviderCalls;
pub(crate) use credentials::{CredentialsSource, PasswordSource};
pub(crate) use handshake::{Login, Requirement};

use super::endpoint::{Endpoint, connect_to_socket};
use super::history::{Noted, Shown, judge};
use super::shutdown::ShutdownRegistry;
use super::tls::{self, Tls};
use super::{
    Connection, ConnectionLike, HISTORY, Identity, Introduction, OneStore, Server,
    ServerGeneration, Transport,
};
use lock_core::backend::{Backoff, Failure, no_descriptor, no_thread};
use lock_core::{Clock, Error, Moment};
use resolve::{LookUpError, Resolver};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bounds of connecting and of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Of making a connection, with its handshake.
    pub(crate) connect: Duration,
    /// Of one request, and so of the time until what was sent is acknowledged.
    pub(crate) command: Duration,
}

/// Makes connections to one server.
#[derive(Debug)]
pub(crate) struct Dialer {
    server: Arc<Server>,
    login: Login,
    provider_calls: ProviderCalls,
    timeouts: Timeouts,
    clock: Arc<dyn Clock>,
    route: Route,
    /// For a server that may be [retired](Self::retire).
    shutdown: Option<ShutdownRegistry>,
    /// Which server belongs there, where each connection begins by asking for it.
    identity: Option<Identity>,
    one_store: OneStore,
    /// What to do where it cannot be connected to, as far as it depends on the topology.
    advice: Option<String>,
    /// How many connections have failed. After the first, users look at theirs before they trust
    /// it: a restart of the server costs one request, and not one for each connection.
    failures: AtomicU64,
}

/// How often a connection is made anew where it leads to a replica, or to a server that reads its
/// data: behind something that balances connections over a master and its replicas, the next one
/// may lead to the master.
const DIALS: u32 = 16;
/// How many of them are made at once; the others after pauses, which double.
const DIALS_AT_ONCE: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Why there is no connection.
enum NotDialed {
    /// The next one may lead to another server.
    Elsewhere(Failure),
    Failed(Failure),
}

impl From<Failure> for NotDialed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// How the server is reached.
#[derive(Debug)]
enum Route {
    Tcp(Resolver, Option<Tls>),
    Unix(PathBuf),
}

impl Dialer {
    pub(crate) fn new(
        server: Server,
        tls: Option<Tls>,
        login: Login,
        timeouts: Timeouts,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let route = match &server.endpoint {
            Endpoint::Tcp { host, port } => Route::Tcp(Resolver::new(host, *port), tls),
            Endpoint::Unix(path) => Route::Unix(path.clone()),
        };
        let (server, failures) = (Arc::new(server), AtomicU64::new(0));
        Self {
            server,
            login,
            provider_calls: ProviderCalls::new(),
            timeouts,
            clock,
            route,
            shutdown: None,
            identity: None,
            one_store: OneStore::Off,
            advice: None,
            failures,
        }
    }

    /// To a test's listener, without a login.
    #[cfg(test)]
    pub(crate) fn to(listener: &std::net::TcpListener, command: Duration) -> Self {
        let port = listener.local_addr().unwrap().port();
        let server = Server::new(Endpoint::tcp("127.0.0.1", port), None);
        let login = Login { secrets: <_>::default(), database: 0, client_name: String::new() };
        let timeouts = Timeouts { connect: Duration::from_secs(5), command };
        Self::new(server, None, login, timeouts, Arc::new(lock_core::SystemClock))
    }

    /// The same to a server that may be [retired](Self::retire).
    pub(crate) fn retirable(mut self) -> Self {
        self.shutdown = Some(ShutdownRegistry::default());
        self
    }

    /// The same, where each connection begins by asking which server it leads to.
    pub(crate) fn identified(self, identity: Identity) -> Self {
        Self { identity: Some(identity), ..self }
    }

    /// The same, where each connection begins with what proves that all keys are in one store.
    pub(crate) fn proving(self, one_store: OneStore) -> Self {
        Self { one_store, ..self }
    }

    /// Whether the server shows that it belongs to the one that has shown this at that time, by a
    /// connection that is made until `by`: see [`Judgement::is_of_same_history`].
    pub(crate) fn succeeds(&self, (noted, at): &(Noted, Moment), by: Moment) -> bool {
        let Some(shown) = self.show(by) else { return false };
        judge(noted, &shown, self.clock.now().since(*at)).is_of_same_history()
    }

    fn show(&self, by: Moment) -> Option<Shown> {
        let mut connection = self.dial(by).ok()?;
        let reply = connection.call(&HISTORY, by).ok()?;
        let run_id = self.identity.as_ref().and_then(Identity::known)?.to_string();
        let shown = Shown::read(&String::from_utf8_lossy(reply.as_bytes()?));
        Some(Shown { run_id: Some(run_id), ..shown })
    }

    /// The same, with this advice in the errors where no connection can be made.
    pub(crate) fn advising(self, advice: String) -> Self {
        Self { advice: Some(advice), ..self }
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

    /// Ends the exclusive connections, on which no caller waits any longer, and makes no new ones.
    pub(crate) fn retire(&self) {
        if let Some(shutdown) = &self.shutdown {
            shutdown.shut();
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.shutdown.as_ref().is_some_and(ShutdownRegistry::is_shut)
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

    /// How long a request may take.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.timeouts.command
    }

    /// How many connections have failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// A connection failed.
    pub(crate) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a connection until `by`, and never takes longer than the connect timeout.
    ///
    /// Fails with [`Failure::Refused`] where the server replied that it will never let us in, and
    /// with [`Failure::NotSent`] otherwise.
    pub(crate) fn dial(&self, by: Moment) -> Result<Connection, Failure> {
        let by = by.min(self.clock.now() + self.timeouts.connect);
        let (mut dials, mut pauses) = (1, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        let mut refusal = None;
        loop {
            match self.dial_once(Requirement::Usable, by) {
                Ok(connection) => return Ok(connection),
                Err(NotDialed::Elsewhere(failure)) => {
                    dials += 1;
                    let is_paced = dials > DIALS_AT_ONCE;
                    let pause = if is_paced { pauses.next() } else { Duration::ZERO };
                    let next = self.clock.now() + pause;
                    if dials > DIALS || next >= by {
                        return Err(failure);
                    }
                    if is_paced {
                        self.clock.wait(&Arc::default(), next);
                    }
                    refusal = Some(failure);
                }
                Err(NotDialed::Failed(failure)) => {
                    // What a server has said says more than a time-out does.
                    let is_late = self.clock.now() >= by;
                    return Err(refusal.filter(|_| is_late).unwrap_or(failure));
                }
            }
        }
    }

    /// The same to whatever server is there: to ask what it is, and for nothing else.
    pub(crate) fn dial_any(&self, by: Moment) -> Result<Connection, Failure> {
        let by = by.min(self.clock.now() + self.timeouts.connect);
        self.dial_once(Requirement::Nothing, by).map_err(|not_dialed| match not_dialed {
            NotDialed::Elsewhere(failure) | NotDialed::Failed(failure) => failure,
        })
    }

    fn dial_once(&self, requirement: Requirement, by: Moment) -> Result<Connection, NotDialed> {
        // First: the time it takes must not count as silence on the connection.
        let credentials =
            self.login.secrets.resolve(&self.provider_calls, &self.server, &*self.clock, by);
        let credentials = credentials.map_err(not_connected)?;
        self.server.set_user(credentials.user.as_deref());
        let transport = self.connect(by).map_err(not_connected)?;
        let transport = Arc::new(transport.counted(self.server.notices.connected()));
        if self.shutdown.as_ref().is_some_and(|shutdown| !shutdown.register(&transport)) {
            return Err(Failure::NotSent(self.retired()).into());
        }
        let (server, clock) = (Arc::clone(&self.server), Arc::clone(&self.clock));
        let mut connection = Connection::new(transport, server, clock);
        connection.handshake_tls(by).map_err(|error| {
            if let Route::Tcp(_, Some(tls)) = &self.route {
                tls.failed(&error);
            }
            not_connected(tls::unfinished(&self.server, error))
        })?;
        self.handshake(&mut connection, &credentials, requirement, by)?;
        Ok(connection)
    }

    /// The addresses of the server; none where they are unknown.
    pub(crate) fn resolve(&self, by: Moment) -> Vec<SocketAddr> {
        match &self.route {
            Route::Tcp(resolver, _) => resolver.resolve(&*self.clock, by).unwrap_or_default(),
            Route::Unix(_) => Vec::new(),
        }
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
            prepare(&stream, self.timeouts.command)?;
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
                let advice = self.advice();
                Error::unavailable(format!("{attempt}: {mend}{advice}")).with_source(failure)
            }
        }
    }

    /// The advice, as the end of a message.
    fn advice(&self) -> String {
        self.advice.as_ref().map_or_else(String::new, |advice| format!(" ({advice})"))
    }

    pub(super) fn cannot_connect(&self, error: io::Error) -> Error {
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
}

/// Connects to the first of `addresses` that accepts until `by`; else fails as the last one did.
fn connect_to_any(
    addresses: &[SocketAddr],
    clock: &dyn Clock,
    by: Moment,
) -> io::Result<TcpStream> {
    let mut trouble = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // The rest of the time is divided: a first address without a reply leaves time for the
        // next.
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

/// Sets the options of a socket. What is sent stays unacknowledged for `unacknowledged` at most.
fn prepare(stream: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    // Requests are small and written whole: waiting for more would only cost time.
    stream.set_nodelay(true)?;
    // For a server that vanished while a connection was idle. Requests have their own deadlines.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10));
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    // For a server that vanished with a request on the way: the kernel would send that again for a
    // quarter of an hour, also on a socket that was closed.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(unacknowledged))?;
    #[cfg(not(target_os = "linux"))]
    let _ = unacknowledged;
    Ok(())
}

/// The failure of an attempt to connect: refused where no other attempt can succeed.
fn not_connected(error: Error) -> Failure {
    if error.is_configuration() { Failure::Refused(error) } else { Failure::NotSent(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::SystemClock;
    use std::net::TcpListener;

    #[test]
    fn address_without_a_reply_leaves_time_for_the_next() {
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        // A listener whose queue is full drops what arrives, as a firewall does.
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
        // Half of it for the first.
        let by = SystemClock.now() + Duration::from_secs(3);
        let addresses = [hole_address, good.local_addr().unwrap()];
        let stream = connect_to_any(&addresses, &SystemClock, by).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        let error = connect_to_any(&[hole_address; 2], &SystemClock, by).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn unacknowledged_data_ends_a_connection_after_command_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let command = Duration::from_millis(1_234);
        let dialer = Dialer::to(&listener, command);
        let transport = dialer.connect(Moment::NEVER).unwrap();
        let socket = transport.socket();
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(command));
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
    }
}
