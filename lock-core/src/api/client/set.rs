//! [`ClientSet`]: the clients of a file that names backends and locks.

use super::{Client, ClientBuilder};
use crate::api::mutex::{Mutex, OwnedMutex};
use crate::backend::owner::ClientId;
use crate::config::scheme::Context;
use crate::config::{ClientKey, Config, ConfigSet};
use crate::engine::Engine;
use crate::error::Error;
use crate::name::LockName;
use crate::sync::{HashMap, Mutex as Synchronised};
use crate::time::SystemClock;
use std::fmt;
use std::sync::Arc;

/// The clients of a [`ConfigSet`]: each lock has the backend and the settings that the set gives to
/// its name. Clones are the same set.
///
/// A client is made on its first use, and stays at least until the last clone of the set is
/// dropped. Locks with the same backend and the same options share one client; every other
/// combination in the file has its own connections and watchdog.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::config::ConfigSet;
///
/// let file = ConfigSet::from_toml(r#"
///     default = "main"
///     [backends.main]
///     url = "memory://main"
///     [backends.ledger]
///     url = "memory://ledger"
///     [locks.nightly]
///     backend = "ledger"
///     watchdog = "60s"
/// "#)?;
/// let clients = distlock::builder().connect_set(file)?;
/// let guard = clients.mutex("nightly")?.lock()?; // on `ledger`
/// # guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct ClientSet(Arc<Shared>);

struct Shared {
    builder: ClientBuilder,
    configs: ConfigSet,
    open: Synchronised<HashMap<ClientKey, Client>>,
}

impl ClientSet {
    /// Returns the reentrant mutex of this name, which a thread holds: see [`Client::mutex`]. Sends
    /// no request.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::mutex`] and [`client`](Self::client).
    pub fn mutex<N>(&self, name: N) -> Result<Mutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        let name = name.try_into()?;
        self.client(name.as_str())?.mutex::<LockName>(name)
    }

    /// Returns the mutex of this name that a guard holds, and not a thread: see
    /// [`Client::owned_mutex`]. Sends no request.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::owned_mutex`] and [`client`](Self::client).
    pub fn owned_mutex<N>(&self, name: N) -> Result<OwnedMutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        let name = name.try_into()?;
        self.client(name.as_str())?.owned_mutex::<LockName>(name)
    }

    /// Returns the client for the lock of this name, with the lock's backend and options. That
    /// client makes the other kinds of locks, as in `clients.client("jobs")?.semaphore("jobs", 3)`.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the file has no section for this name and no default backend,
    /// and if a file that a setting names has become invalid since the set was made.
    /// [`Error::is_unavailable`] if the system has no thread left for the events of a new client.
    pub fn client(&self, lock: &str) -> Result<Client, Error> {
        self.open(self.0.configs.key(lock)?, || self.0.configs.config(lock))
    }

    /// Returns the client of this backend (`None`: of the default backend) without the options of
    /// any lock: for [`Client::ping`] and [`Client::diagnose`].
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if there is no such backend (the text lists the existing names)
    /// or no default backend. If the client must be made, also the errors of
    /// [`client`](Self::client) for that.
    pub fn backend(&self, name: Option<&str>) -> Result<Client, Error> {
        self.open(self.0.configs.backend_key(name)?, || {
            self.0.configs.backend_config(name)
        })
    }

    /// Returns the settings.
    #[must_use]
    pub fn configs(&self) -> &ConfigSet {
        &self.0.configs
    }

    /// Returns the client with this key, and makes it if needed.
    fn open(
        &self,
        key: ClientKey,
        config: impl FnOnce() -> Result<Config, Error>,
    ) -> Result<Client, Error> {
        // Locked while a client is made, which sends no request, so that two threads get the same
        // client.
        let mut open = self.0.open.lock();
        if let Some(client) = open.get(&key) {
            return Ok(client.clone());
        }
        let mut config = config()?;
        if !open.is_empty() {
            // The first client has already emitted the warnings about unknown variables.
            config = config.without_unknown_variables();
        }
        let client = self.0.builder.clone().config(config).connect()?;
        open.insert(key, client.clone());
        Ok(client)
    }
}

impl fmt::Debug for ClientSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientSet").field(&self.0.configs).finish()
    }
}

impl ClientBuilder {
    /// Makes the set of the clients of a file that names backends and locks. Each client is made on
    /// its first use, with the schemes, the clock, the event handler, the owner and the setting for
    /// metrics of this builder.
    ///
    /// # Blocking
    ///
    /// Does not block. The first request of each client reports an unreachable store.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with the file and the line for the first invalid section, if the
    /// owner of this builder is invalid, and if this builder already has a URL, a configuration or
    /// a backend. [`Error::is_unsupported`] with the line for a setting that its store does not
    /// support.
    pub fn connect_set(self, configs: ConfigSet) -> Result<ClientSet, Error> {
        if self.config.is_some() || self.backend.is_some() {
            return Err(Error::configuration(
                "the builder has a store, and so has the file: leave it out of the builder, and \
                 change settings by `ConfigSet::configure`",
            ));
        }
        if let Some(owner) = &self.owner {
            Config::default().with_owner(owner.clone()).check()?;
        }
        let schemes = self.known_schemes();
        let clock = self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock));
        // Each store is opened only to check its settings.
        configs.check_each(|config| {
            let context = Context::new(Arc::clone(&clock), ClientId::random());
            let abilities = schemes.open(config, &context)?.abilities();
            Engine::refuse_unsupported(config, &abilities)
        })?;
        let open = Synchronised::default();
        Ok(ClientSet(Arc::new(Shared {
            builder: self,
            configs,
            open,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryBackend;
    use crate::kind::LockKind;
    use std::time::Duration;

    const FILE: &str = "
        default = 'main'
        [backends.main]
        url = 'memory://set-main'
        [backends.ledger]
        url = 'memory://set-ledger'
        watchdog = '7s'
        [locks.nightly]
        backend = 'ledger'
        [locks.brief]
        watchdog = '2s'
        [locks.'brief:*']
        watchdog = '2s'
        [locks.lasting]
        lease = '30s'
    ";

    fn clients() -> ClientSet {
        crate::builder()
            .connect_set(ConfigSet::from_toml(FILE).unwrap())
            .unwrap()
    }

    #[test]
    fn client_is_made_once_for_a_backend_and_its_options() {
        let clients = clients();
        assert!(clients.0.open.lock().is_empty(), "made on first use");
        let id = |lock| clients.client(lock).unwrap().id();
        assert_eq!(id("a"), id("b"));
        assert_eq!(id("a"), clients.backend(None).unwrap().id());
        assert_eq!(id("nightly"), clients.backend(Some("ledger")).unwrap().id());
        assert_eq!(id("brief"), id("brief:1"));
        assert_eq!(id("brief"), clients.clone().client("brief").unwrap().id());
        let different = [id("a"), id("nightly"), id("brief"), id("lasting")];
        assert_eq!(
            different
                .iter()
                .collect::<std::collections::HashSet<_>>()
                .len(),
            4
        );
        assert_eq!(clients.0.open.lock().len(), 4);
        assert!(
            clients
                .backend(Some("none"))
                .unwrap_err()
                .is_configuration()
        );
    }

    #[test]
    fn lock_is_on_its_backend_with_its_options() {
        let clients = clients();
        let other = |url: &str| crate::builder().url(url).unwrap().connect().unwrap();
        let (main, ledger) = (other("memory://set-main"), other("memory://set-ledger"));
        let is_locked = |client: &Client, lock| client.mutex(lock).unwrap().is_locked().unwrap();
        let nightly = clients.mutex("nightly").unwrap().lock().unwrap();
        assert!(is_locked(&ledger, "nightly") && !is_locked(&main, "nightly"));
        let left = nightly.remaining();
        assert!(
            left > Duration::from_secs(2) && left <= Duration::from_secs(7),
            "{left:?}"
        );
        let brief = clients.owned_mutex("brief:x").unwrap().lock().unwrap();
        assert!(is_locked(&main, "brief:x") && brief.remaining() <= Duration::from_secs(2));
    }

    #[test]
    fn mutexes_and_semaphores_of_a_set_are_fair_where_its_settings_say_so() {
        let file = "url = 'memory://set-fair'\norder = 'fair'\n";
        let clients = crate::builder()
            .connect_set(ConfigSet::from_toml(file).unwrap())
            .unwrap();
        let kinds = [
            clients.mutex("a").unwrap().name().kind(),
            clients.owned_mutex("a").unwrap().name().kind(),
        ];
        assert_eq!(kinds, [LockKind::Fair; 2]);
        let slots = clients.client("s").unwrap().semaphore("s", 2).unwrap();
        assert_eq!(
            slots.name().kind(),
            LockKind::FairPermits { limit: 2, count: 1 }
        );
    }

    #[test]
    fn section_that_no_scheme_opens_is_refused_with_its_line() {
        let refusal = |text: &str| {
            let set = ConfigSet::from_toml(&format!("url = 'memory://set'\n{text}")).unwrap();
            let error = crate::builder().connect_set(set).unwrap_err();
            assert!(
                error.is_configuration() || error.is_unsupported(),
                "{error:?}"
            );
            error.to_string()
        };
        for (text, says) in [
            (
                "[backends.b]\nurl = 'redis://u:s3cret@h'",
                "line 3: there is no scheme `redis://`",
            ),
            (
                "[locks.x]\nformat = 'token'",
                "line 3: there is no option `format` for `memory://`",
            ),
            ("tls_ca = 'x'", "line 2: there is no option `tls_ca`"),
            ("pool = 1\nreplicas = 1", "line 3: "),
            ("[locks.x]\nlease = '1s'\nreplicas = 1", "line 4: "),
        ] {
            let said = refusal(text);
            assert!(
                said.starts_with(says) && !said.contains("s3cret"),
                "{text}: {said}"
            );
        }
    }

    #[test]
    fn builder_with_a_store_makes_no_set() {
        let set = || ConfigSet::from_toml(FILE).unwrap();
        let backend = Arc::new(MemoryBackend::new(Arc::new(SystemClock)));
        for builder in [
            crate::builder().url("memory://").unwrap(),
            crate::builder().backend(backend),
        ] {
            let refused = builder.connect_set(set()).unwrap_err().to_string();
            assert!(refused.contains("ConfigSet::configure"), "{refused}");
        }
    }
}
