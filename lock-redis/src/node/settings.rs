//! [`NodeSettings`]: the settings that all nodes of a client have in common; creates nodes.

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

/// The settings that all nodes of a client have in common.
#[derive(Debug)]
pub struct NodeSettings {
    format: Format,
    login: Login,
    /// The credentials for the sentinels.
    sentinel_secrets: CredentialsSource,
    destinations: Destinations,
    pool: u32,
    /// The thread that creates the slots of all pools.
    thread: PoolThread,
    eviction: OnEviction,
    one_store: OneStore,
    terms: NodeTerms,
    client: ClientId,
}

impl NodeSettings {
    /// The option of a URL that names the format.
    pub const FORMAT: &str = protocol::OPTION;
    /// The option of a URL for the reaction to an eviction policy.
    pub const EVICTION: &str = eviction::OPTION;
    /// The option of a URL that turns reports of key changes on or off.
    pub const TRACKING: &str = TRACKING;
    /// The option of a URL that turns joined requests on or off.
    pub const JOINED: &str = JOINED;

    /// Returns the settings in `config`, for this database number. Reads the files of TLS and of
    /// passwords, if there are any, within one connect timeout.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if a setting is invalid or contradicts another, or a file cannot
    /// be read. [`Error::is_unavailable`] if a thread cannot be started.
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
        // Formats without owners have no scripts for several locks, so nothing can be joined.
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

    /// Returns the node on this host and port. Does not connect to it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if no certificate can be for a host of this name.
    /// [`Error::is_unavailable`] if the connection pool cannot be created.
    pub fn node_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        let destination = self
            .destination(Endpoint::tcp(host, port))?
            .proving(self.one_store);
        self.node(destination, None, None, Arc::default())
    }

    /// Returns a cluster node that may leave the cluster: [`Node::retire`] then ends the use of the
    /// node. Each new connection checks the node's ID, and fails unless that ID is `id`; without an
    /// `id`, unless it is the ID of the node that answered first. `replicas` returns the number of
    /// the node's replicas, and `addresses` their addresses.
    ///
    /// # Errors
    ///
    /// As [`node_on`](Self::node_on).
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
        // These addresses are mapped already, so the map for replicas is empty.
        self.node(destination, Some(replicas), Some(addresses), Arc::default())
    }

    /// Returns the node of a cluster on this host and port, for queries about the cluster only. The
    /// reply to such a query contains the node's ID, so the node's connections do not check the ID.
    ///
    /// # Errors
    ///
    /// As [`node_on`](Self::node_on).
    pub fn bystander_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        let destination = self.destination(Endpoint::tcp(host, port))?;
        self.node(destination, None, None, Arc::default())
    }

    /// Returns a server that is used for as long as the sentinels consider it a master:
    /// [`Node::retire`] then ends the use of the server. Each new connection checks that the server
    /// is a master, and which one. The connection fails unless the server has this `run_id`
    /// (without a `run_id`, that of the server that answered first), or was a replica of the server
    /// with the history `former`. `map` has the real addresses of the master's replicas. The error
    /// of a failed connection ends with `advice`.
    ///
    /// # Errors
    ///
    /// As [`node_on`](Self::node_on).
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

    /// Returns the node at this endpoint, where another server may later answer: see [`Identity`].
    pub(crate) fn followed(&self, place: Endpoint) -> Result<Node, Error> {
        let identity = Identity::followed(self.terms.lease);
        let destination = self
            .destination(place)?
            .identified(identity)
            .proving(self.one_store);
        self.node(destination, None, None, Arc::default())
    }

    /// Returns these settings with the credentials and the TLS settings for this server. `options`
    /// names certificates.
    #[cfg(feature = "redis-rs")]
    pub(crate) fn with_login_of(self, server: &Config, options: &Config) -> Result<Self, Error> {
        let mut server = server.clone();
        for name in [
            url::options::TLS_CA,
            url::options::TLS_CERT,
            url::options::TLS_KEY,
            url::options::TLS_NAME,
        ] {
            if let Some(value) = options.scheme_option(name) {
                server = server.with_option(name, value);
            }
        }
        let clock = &*self.destinations.clock;
        let time = DialTime::until(clock, clock.now() + self.destinations.bounds.connect);
        let tls = url::tls(&server, &time)?;
        let mut settings = self;
        settings.destinations.tls = tls;
        settings.login.secrets.user = server.user().map(str::to_owned);
        settings.login.secrets.password = match server.password() {
            Some(password) => PasswordSource::Given(password.clone()),
            None => PasswordSource::None,
        };
        Ok(settings)
    }

    /// Returns the node of which the application's pool lends connections. `place` is the server if
    /// it is known: then one connection of our own receives releases. Otherwise waiters poll.
    #[cfg(feature = "redis-rs")]
    pub(crate) fn lent(
        &self,
        place: Option<Endpoint>,
        pool: crate::connection::LentPool,
    ) -> Result<Node, Error> {
        let pool = pool.of_new_client();
        let size = pool.size();
        // Shared, so that the messages about releases come from the server of the pool.
        let identity = Arc::new(Identity::followed(self.terms.lease));
        let receiver = match place.clone() {
            Some(place) => {
                let destination = self.destination(place)?.identified(Arc::clone(&identity));
                Some(Arc::new(Dialer::new(destination)))
            }
            None => None,
        };
        let place = place.unwrap_or(Endpoint::Lent);
        let destination = self.destination(place)?.lent_by(pool, receiver.clone());
        let destination = destination.identified(identity).proving(self.one_store);
        let node = self.node(destination, None, None, Arc::default())?;
        let mut inner = Arc::into_inner(node.inner).expect("it has no clones");
        // A connection that goes back is in the state in which it came.
        inner.terms.tracking = Tracking::Off;
        inner.pool = ConnectionPool::new(size, &self.thread, Arc::clone(&inner.dialer))?;
        if let Some(receiver) = receiver {
            inner.subscriber = Subscriber::new(receiver, Tracking::Off);
        } else {
            let crate::wakeups::PollInterval { interval, jitter } = <_>::default();
            inner.waking = Some(lock_core::backend::Waking::Polls { interval, jitter });
        }
        Ok(Node {
            inner: Arc::new(inner),
            mode: RequestMode::Lent,
        })
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
            waking: None,
        };
        Ok(Node {
            inner: Arc::new(inner),
            mode: RequestMode::Direct,
        })
    }

    /// Returns a dialer for a sentinel, with the sentinels' credentials and database 0.
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

    /// Returns the time limits of a connection attempt and of a request.
    pub(crate) fn bounds(&self) -> Timeouts {
        self.destinations.bounds
    }

    /// Returns the wire format.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Returns the clock of all deadlines.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.destinations.clock
    }

    /// Returns the receiver of notices about this client's servers.
    #[must_use]
    pub fn notices(&self) -> &Notices {
        &self.destinations.notices
    }

    /// Returns the longest lease of locks that are acquired without a lease of their own.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.terms.lease
    }

    /// Returns whether the connections use TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.destinations.tls.is_some()
    }

    fn destination(&self, place: Endpoint) -> Result<Destination, Error> {
        self.destinations.of(place, self.login.clone())
    }
}

/// The settings that all destinations of a client have in common.
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
