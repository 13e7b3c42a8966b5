//! [`ClientBuilder`]: makes a [`Client`] from a URL or a configuration.

use super::Client;
use crate::backend::Backend;
use crate::backend::owner::ClientId;
use crate::config::Config;
use crate::config::scheme::{Context, Schemes};
use crate::engine::{Engine, EngineHandle};
use crate::error::Error;
use crate::memory::MemoryScheme;
use crate::observe::event::EventHandler;
use crate::observe::event_queue::Events;
use crate::observe::metrics::Metrics;
use crate::observe::notices::Notices;
use crate::time::contained_clock::ContainedClock;
use crate::time::{Clock, SystemClock};
use std::fmt;
use std::sync::Arc;

/// Returns a builder of clients. Without other [schemes](ClientBuilder::schemes), its URLs can name
/// only the in-memory store; the `builder` of the crate `distlock` also has the Redis stores.
pub fn builder() -> ClientBuilder {
    ClientBuilder::default()
}

/// Makes a [`Client`]. [`builder`] returns one.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::Event;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let client = distlock::builder()
///     .url("memory://jobs")?
///     .configure(|config| config.with_watchdog(Duration::from_secs(10)))
///     .events(Arc::new(|event: &Event| println!("{event:?}")))
///     .connect()?;
/// # let _ = client;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct ClientBuilder {
    pub(super) config: Option<Config>,
    /// The label of lock holders. Not part of `config` before `connect`: a URL that is set later
    /// would replace it, and a configuration with nothing but an owner names no store.
    pub(super) owner: Option<String>,
    schemes: Option<Schemes>,
    pub(super) backend: Option<Arc<dyn Backend>>,
    pub(super) clock: Option<Arc<dyn Clock>>,
    events: Option<Arc<dyn EventHandler>>,
    #[cfg(feature = "metrics")]
    metrics_by_name: bool,
}

impl ClientBuilder {
    /// Sets the store and the settings from a URL.
    ///
    /// # Errors
    ///
    /// The errors of [`Config::from_url`].
    pub fn url(self, url: &str) -> Result<Self, Error> {
        Ok(self.config(Config::from_url(url)?))
    }

    /// Sets the store and the settings from a configuration.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Changes the settings of the URL or configuration that was set before. A URL or configuration
    /// that is set later replaces the changes.
    pub fn configure(mut self, change: impl FnOnce(Config) -> Config) -> Self {
        self.config = Some(change(self.config.unwrap_or_default()));
        self
    }

    /// Sets the label of lock holders, for people: see [`Config::with_owner`]. This label replaces
    /// the label in the settings, even in settings that are set later.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the schemes that the URL can name, in place of the schemes of [`builder`].
    pub fn schemes(mut self, schemes: Schemes) -> Self {
        self.schemes = Some(schemes);
        self
    }

    /// Uses this backend in place of the store that the URL names. The settings of the URL apply.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Uses this clock, for tests. A given backend must use the same clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(ContainedClock::around(clock));
        self
    }

    /// Sends the client's events to this handler, on a separate thread.
    pub fn events(mut self, handler: Arc<dyn EventHandler>) -> Self {
        self.events = Some(handler);
        self
    }

    /// Adds the label `lock` with the lock's name to the [metrics](crate::metrics) of locks.
    ///
    /// Use it for a few fixed names only. Each name makes its own set of time series, with a bucket
    /// for each limit of each histogram, which this client, the recorder and the metrics system
    /// store: a name for each order or user exhausts their memory. The metrics of a name are
    /// registered at its first use, on the thread that uses it.
    #[cfg(feature = "metrics")]
    pub fn metrics_by_name(mut self) -> Self {
        self.metrics_by_name = true;
        self
    }

    /// Makes the client.
    ///
    /// # Blocking
    ///
    /// Does not block. The first request reports an unreachable store.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with every contradiction in the settings, for an unknown scheme
    /// or option, and if there is neither a URL nor a backend. [`Error::is_unsupported`] if the
    /// store does not support a setting. [`Error::is_unavailable`] if the system has no thread left
    /// for the events.
    pub fn connect(mut self) -> Result<Client, Error> {
        if (self.config.is_some() || self.backend.is_some())
            && let Some(owner) = self.owner.take()
        {
            self = self.configure(|config| config.with_owner(owner));
        }
        Client::built_by(self)
    }

    /// Returns the schemes that a URL can name.
    pub(super) fn known_schemes(&self) -> Schemes {
        self.schemes
            .clone()
            .unwrap_or_else(|| Schemes::empty().with(MemoryScheme))
    }

    pub(super) fn open(self) -> Result<Arc<EngineHandle>, Error> {
        let schemes = self.known_schemes();
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        #[cfg(feature = "tracing")]
        let told: Option<Arc<dyn EventHandler>> =
            Some(Arc::new(crate::observe::trace::Traced::before(self.events)));
        #[cfg(not(feature = "tracing"))]
        let told = self.events;
        #[cfg(feature = "metrics")]
        let metrics = {
            let config = self.config.as_ref();
            let scheme = config
                .filter(|_| self.backend.is_none())
                .map_or("custom", Config::scheme);
            let format = config.and_then(|config| config.scheme_option("format"));
            Metrics::register(scheme, format, self.metrics_by_name)
        };
        #[cfg(not(feature = "metrics"))]
        let metrics = Metrics::default();
        let events = Events::to(told, metrics.clone())?;
        let notices = Notices::to(events.clone());
        let context = Context::new(Arc::clone(&clock), ClientId::random());
        let context = context.with_notices(notices.clone());
        let (config, backend) = match (self.config, self.backend) {
            (config, Some(backend)) => {
                let config = config.unwrap_or_default();
                config.check()?;
                (config, backend)
            }
            (Some(config), None) => {
                let backend = schemes.open(&config, &context)?;
                (config, backend)
            }
            (None, None) => {
                return Err(Error::configuration(
                    "there is neither a URL nor a backend: name a store",
                ));
            }
        };
        config.warn_of_variables(&notices);
        let backend = metrics.around(backend);
        let alive = Engine::open(&config, backend, clock, context.client, events)?;
        alive.verify_on(&notices);
        Ok(alive)
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("config", &self.config)
            .field("schemes", &self.schemes)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockName, MemoryBackend};

    #[test]
    fn owner_is_kept_by_a_later_url_and_is_no_store() {
        let named = || builder().owner("till-7");
        let refused = named().connect().unwrap_err();
        assert!(refused.to_string().contains("name a store"), "{refused}");
        let backend = Arc::new(MemoryBackend::new(Arc::new(SystemClock)));
        for builder in [
            named().url("memory://owner-and-url?owner=x").unwrap(),
            named().backend(backend),
        ] {
            let client = builder.connect().unwrap();
            assert_eq!(label(&client).as_deref(), Some("till-7"));
        }
        let client = named()
            .url("memory://owner-of-variant")
            .unwrap()
            .connect()
            .unwrap();
        let other = client.with_option("owner", "till-8").unwrap();
        assert_eq!(label(&other).as_deref(), Some("till-8"));
    }

    #[cfg(feature = "toml")]
    #[test]
    fn owner_of_a_builder_is_that_of_its_set() {
        let configs = || crate::ConfigSet::from_toml("url = 'memory://owner-of-set'").unwrap();
        let set = builder().owner("till-7").connect_set(configs()).unwrap();
        assert_eq!(label(&set.client("a").unwrap()).as_deref(), Some("till-7"));
        let refused = builder().owner("").connect_set(configs()).unwrap_err();
        assert!(refused.is_configuration(), "{refused:?}");
    }

    /// Returns the label that the store shows for a lock of this client.
    fn label(client: &Client) -> Option<Arc<str>> {
        let lock = client.mutex("labelled").unwrap();
        let _guard = lock.lock().unwrap();
        let state = client
            .inspect_all(&[LockName::new("labelled").unwrap()])
            .remove(0)
            .unwrap();
        state.holder?.label.map(|label| label.text)
    }
}
