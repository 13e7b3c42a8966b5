//! [`NodeSettings`]: what all nodes of a client have in common, and how one is made.

use super::Node;
use crate::eviction::OnEviction;
use crate::link::{Bounds, Dialer, Identity, Login, Password, Place, Server, TlsSettings};
use crate::pool::PoolThread;
use crate::scheme;
use lock_core::{Clock, Config, Context, Error, Secret, Warnings};
use std::sync::Arc;

/// What all nodes of a client have in common.
#[derive(Debug)]
pub struct NodeSettings {
    login: Login,
    /// Who gives the sentinels' password, where it is not simply given.
    sentinel: Option<Identity>,
    tls: Option<TlsSettings>,
    bounds: Bounds,
    pool: u32,
    /// Makes the slots of all pools.
    thread: PoolThread,
    clock: Arc<dyn Clock>,
    warnings: Warnings,
    eviction: OnEviction,
}

impl NodeSettings {
    /// Those in `config`, with the database of this number. Reads the files of TLS and of passwords, if there are any.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if a setting contradicts another, or a file cannot be read.
    pub fn new(config: &Config, database: u32, context: &Context) -> Result<Self, Error> {
        let provider = config.credentials().map(Arc::clone);
        let password = match (config.password_file(), config.password()) {
            (Some(path), _) => Password::InFile("password_file", path.to_owned()),
            (None, Some(password)) => Password::Given(password.clone()),
            (None, None) => Password::None,
        };
        let user = config.user().map(str::to_owned);
        let identity = Identity { user, password, provider, is_sentinel: false };
        identity.check()?;
        let client_name = config.client_name().to_owned();
        let login = Login { identity, database, client_name };
        let sentinel = scheme::sentinel_identity(config)?;
        let bounds =
            Bounds { connect: config.connect_timeout(), command: config.command_timeout() };
        Ok(Self {
            login,
            sentinel,
            tls: scheme::tls(config)?,
            warnings: context.warnings.clone(),
            eviction: OnEviction::of(config)?,
            bounds,
            pool: config.pool(),
            thread: PoolThread::start()?,
            clock: Arc::clone(&context.clock),
        })
    }

    /// The node on this host and port. Does not talk to it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if no certificate can be for a host of this name.
    pub fn node_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        self.node(Place::tcp(host, port))
    }

    /// The same, where the server may leave: [`Node::retire`] ends all connections to it.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn guest_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        let dialer = self.dialer(Place::tcp(host, port))?.for_a_while();
        Node::new(Arc::new(dialer), self.pool, &self.thread, self.bounds, self.eviction)
    }

    /// The same, where the server is a master for as long as others hold it for one: each connection begins with the
    /// question whether it is, and [`Node::retire`] ends them all.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn master_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        let dialer = self.dialer(Place::tcp(host, port))?.for_a_master();
        Node::new(Arc::new(dialer), self.pool, &self.thread, self.bounds, self.eviction)
    }

    /// The same for any place.
    pub(crate) fn node(&self, place: Place) -> Result<Node, Error> {
        let dialer = Arc::new(self.dialer(place)?);
        Node::new(dialer, self.pool, &self.thread, self.bounds, self.eviction)
    }

    /// The same servers for another user, in the first database: the sentinels have users of their own.
    pub(crate) fn dialer_for(
        &self,
        place: Place,
        user: Option<&str>,
        password: Option<Secret>,
    ) -> Result<Dialer, Error> {
        let client_name = self.login.client_name.clone();
        let identity = self.sentinel.clone().unwrap_or_else(|| Identity {
            user: user.map(str::to_owned),
            password: password.map_or(Password::None, Password::Given),
            ..Identity::default()
        });
        let login = Login { identity, database: 0, client_name };
        self.dialer_with(place, login)
    }

    /// How long making a connection and one request may take.
    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// The clock that all deadlines are on.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Whether it is TLS that is spoken.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    fn dialer(&self, place: Place) -> Result<Dialer, Error> {
        self.dialer_with(place, self.login.clone())
    }

    fn dialer_with(&self, place: Place, login: Login) -> Result<Dialer, Error> {
        let tls = match (&self.tls, &place) {
            (Some(tls), Place::Tcp { host, .. }) => Some(tls.of(host)?),
            _ => None,
        };
        let server = Server::new(place, login.identity.user.as_deref())
            .over_tls(tls.is_some())
            .warning(self.warnings.clone());
        Ok(Dialer::new(server, tls, login, self.bounds, Arc::clone(&self.clock)))
    }
}
