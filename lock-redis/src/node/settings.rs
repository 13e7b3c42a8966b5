//! [`NodeSettings`]: what all nodes of a client have in common, and how one is made.

use super::diagnosis::NodeTerms;
use super::eviction::{Eviction, OnEviction};
use super::heartbeat::Heartbeat;
use super::replica_clocks::{ReplicaAddresses, ReplicaClocks};
use super::restart_grace::RestartGrace;
use super::{Node, NodeInner, RequestMode, eviction};
use crate::connection::history::Noted;
use crate::connection::{
    Address, AddressMap, ConnectionPool, CredentialsSource, Destination, DialTime, Dialer,
    Endpoint, Identity, IdentityKind, JOINED, Login, OneStore, PasswordSource, PoolThread,
    ReplicaCount, Server, SharedConnection, Timeouts, TlsSettings,
};
use crate::protocol::{self, Format};
use crate::url;
use crate::wakeups::{Subscriber, TRACKING, Tracking};
use lock_core::{ClientId, Clock, Config, Context, Error, Moment, Notices};
use std::sync::Arc;
use std::time::Duration;

/// What all nodes of a client have in common.
#[derive(Debug)]
pub struct NodeSettings {
    format: Format,
    login: Login,
    /// The credentials for the sentinels.
    sentinel_secrets: CredentialsSource,
    destinations: Destinations,
    pool: u32,
    /// Makes the slots of all pools.
    thread: PoolThread,
    eviction: OnEviction,
    one_store: OneStore,
    terms: NodeTerms,
    client: ClientId,
}

impl NodeSettings {
    /// The option of a URL that names the format.
    pub const FORMAT: &str = protocol::OPTION;
    /// The option of a URL that says what follows from an eviction policy.
    pub const EVICTION: &str = eviction::OPTION;
    /// The option of a URL that says whether changes of keys are reported.
    pub const TRACKING: &str = TRACKING;
    /// The option of a URL that says whether requests are joined.
    pub const JOINED: &str = JOINED;

    /// Those in `config`, with the database of this number. Reads the files of TLS and of
    /// passwords, if there are any, in a connect timeout.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if a setting contradicts another, or a file cannot be read.
    pub fn new(
        config: &Config,
        database: u32,
        context: &Context,
        format: Format,
    ) -> Result<Self, Error> {
        let provider = config.credentials().map(Arc::clone);
        let password = match (config.password_file(), config.password()) {
            (Some(path), _) => PasswordSource::in_file("password_file", path),
            (None, Some(password)) => PasswordSource::Given(password.clone()),
            (None, None) => PasswordSource::None,
        };
        let user = config.user().map(str::to_owned);
        let secrets = CredentialsSource {
            user,
            password,
            provider,
            is_sentinel: false,
        };
        let bounds = Timeouts {
            connect: config.connect_timeout(),
            command: config.command_timeout(),
        };
        let clock = &*context.clock;
        let time = DialTime::until(clock, clock.now() + bounds.connect);
        secrets.check(&time)?;
        let client_name = config.client_name().into_owned();
        let login = Login {
            secrets,
            database,
            client_name,
        };
        let sentinel_secrets = url::sentinel_secrets(config, &time)?;
        // Formats without owners have no scripts for several locks.
        let one_store = match (format.as_owned(), OneStore::of(config)?) {
            (Some(_), one_store) => one_store,
            (None, _) => OneStore::Off,
        };
        Ok(Self {
            format,
            login,
            sentinel_secrets,
            destinations: Destinations {
                tls: url::tls(config, &time)?,
                bounds,
                clock: Arc::clone(&context.clock),
                notices: context.notices.clone(),
            },
            eviction: OnEviction::of(config)?,
            one_store,
            terms: NodeTerms {
                lease: config.lease().unwrap_or_default().max(config.watchdog()),
                replicas: config.replication().count(),
                tracking: Tracking::of(config)?,
                has_prefix: !config.prefix().is_empty(),
                database,
                restart_grace: config.restart_grace(),
            },
            pool: config.pool(),
            thread: PoolThread::start()?,
            client: context.client,
        })
    }

    /// The node on this host and port. Does not talk to it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if no certificate can be for a host of this name.
    pub fn node_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        let destination = self
            .destination(Endpoint::tcp(host, port))?
            .proving(self.one_store);
        self.node(destination, None, None, Arc::default())
    }

    /// The same for a node of a cluster, which may leave: [`Node::retire`] ends all connections to
    /// it. Each begins with the question which node answers, and is refused unless that is `id`, or
    /// the first that answered. `replicas` says how many replicas it has, and `addresses` where.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn guest_on(
        &self,
        host: &str,
        port: u16,
        id: Option<&str>,
        replicas: ReplicaCount,
        addresses: ReplicaAddresses,
    ) -> Result<Node, Error> {
        let identity = Identity::of(IdentityKind::Node, id);
        let destination = self
            .destination(Endpoint::tcp(host, port))?
            .identified(identity);
        // They are mapped.
        self.node(destination, Some(replicas), Some(addresses), Arc::default())
    }

    /// The same for any node of a cluster: it says which one it is where it is asked for the
    /// cluster, and is asked for nothing else.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn bystander_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        let destination = self
            .destination(Endpoint::tcp(host, port))?
            .proving(self.one_store);
        self.node(destination, None, None, Arc::default())
    }

    /// The same, where the server is a master for as long as others hold it for one: each
    /// connection begins with the questions which server answers and whether it is a master, and
    /// [`Node::retire`] ends them all. It is refused unless its `run_id` is this one, or that of
    /// the first that answered, or it was a replica of the one that has shown `former`. Its
    /// replicas are reached through `map`. Where it cannot be connected to, the error ends with
    /// `advice`.
    ///
    /// # Errors
    ///
    /// The same.
    pub(crate) fn master_on(
        &self,
        at: &Address,
        run_id: Option<&str>,
        former: Option<(Noted, Moment)>,
        replicas: ReplicaCount,
        map: Arc<AddressMap>,
        advice: String,
    ) -> Result<Node, Error> {
        let identity = Identity::of(IdentityKind::Run, run_id).after(former);
        let destination = self
            .destination(Endpoint::tcp(&at.host, at.port))?
            .advising(advice);
        let destination = destination.identified(identity).proving(self.one_store);
        self.node(destination, Some(replicas), None, map)
    }

    /// The same for any place, where another server is followed: see [`Identity`].
    pub(crate) fn followed(&self, place: Endpoint) -> Result<Node, Error> {
        let identity = Identity::followed(self.terms.lease);
        let destination = self
            .destination(place)?
            .identified(identity)
            .proving(self.one_store);
        self.node(destination, None, None, Arc::default())
    }

    fn node(
        &self,
        destination: Destination,
        replica_count: Option<ReplicaCount>,
        addresses: Option<ReplicaAddresses>,
        map: Arc<AddressMap>,
    ) -> Result<Node, Error> {
        let (dialer, terms) = (Arc::new(Dialer::new(destination)), self.terms);
        let (master, destinations) = (&dialer, self.destinations.clone());
        let login = self.login.clone();
        let to_replica = move |announced: &Address| {
            let Address { host, port } = map.real(announced);
            destinations
                .of(Endpoint::tcp(&host, port), login.clone())
                .map(Dialer::new)
        };
        let replica_clocks = ReplicaClocks::new(
            Arc::clone(master),
            Box::new(to_replica),
            addresses,
            terms.lease,
        );
        let inner = NodeInner {
            format: self.format.clone(),
            client: self.client,
            link: SharedConnection::new(Arc::clone(&dialer), self.format.joins()),
            pool: ConnectionPool::new(self.pool, &self.thread, Arc::clone(&dialer))?,
            renewals: Arc::default(),
            subscriber: Subscriber::new(Arc::clone(&dialer), terms.tracking),
            eviction: Eviction::new(self.eviction, Arc::clone(&dialer)),
            heartbeat: Heartbeat::new(Arc::clone(&dialer)),
            restart_grace: RestartGrace::new(terms.restart_grace, Arc::clone(&dialer)),
            dialer,
            replica_count,
            replica_clocks,
            terms,
        };
        Ok(Node {
            inner: Arc::new(inner),
            mode: RequestMode::Direct,
        })
    }

    /// A dialer for a sentinel: with the sentinels' credentials, and in database 0.
    pub(crate) fn sentinel_dialer(
        &self,
        place: Endpoint,
        advice: Option<String>,
    ) -> Result<Dialer, Error> {
        let (secrets, client_name) = (
            self.sentinel_secrets.clone(),
            self.login.client_name.clone(),
        );
        let login = Login {
            secrets,
            database: 0,
            client_name,
        };
        let destination = self.destinations.of(place, login)?;
        Ok(Dialer::new(match advice {
            Some(advice) => destination.advising(advice),
            None => destination,
        }))
    }

    /// How long making a connection and one request may take.
    pub(crate) fn bounds(&self) -> Timeouts {
        self.destinations.bounds
    }

    /// What stands under a lock's key.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The clock that all deadlines are on.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.destinations.clock
    }

    /// Where is told which servers were found.
    #[must_use]
    pub fn notices(&self) -> &Notices {
        &self.destinations.notices
    }

    /// The longest lease of locks that are taken without one.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.terms.lease
    }

    /// Whether it is TLS that is spoken.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.destinations.tls.is_some()
    }

    fn destination(&self, place: Endpoint) -> Result<Destination, Error> {
        self.destinations.of(place, self.login.clone())
    }
}

/// What all destinations of a client have in common.
#[derive(Clone, Debug)]
struct Destinations {
    tls: Option<TlsSettings>,
    bounds: Timeouts,
    clock: Arc<dyn Clock>,
    notices: Notices,
}

impl Destinations {
    fn of(&self, place: Endpoint, login: Login) -> Result<Destination, Error> {
        let tls = match (&self.tls, &place) {
            (Some(tls), Endpoint::Tcp { host, .. }) => Some(tls.of(host)?),
            _ => None,
        };
        let server = Server::new(place, login.secrets.user.as_deref())
            .over_tls(tls.is_some())
            .warning(self.notices.clone());
        Ok(Destination::new(
            server,
            tls,
            login,
            self.bounds,
            Arc::clone(&self.clock),
        ))
    }
}
