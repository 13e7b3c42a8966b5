//! [`Client`]: a program's access to a store; it makes the locks.

mod locks;
#[cfg(feature = "toml")]
mod set;
mod variants;

pub use self::locks::Locks;
#[cfg(feature = "toml")]
pub use self::set::ClientSet;

use self::variants::Variant;
use crate::backend::{Abilities, Backend, LockInfo};
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::diagnosis::Finding;
#[cfg(doc)]
use crate::diagnosis::FindingLevel;
use crate::election::Election;
use crate::engine::{Engine, EngineHandle};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::event::EventHandler;
use crate::event_queue::Events;
use crate::memory::MemoryScheme;
use crate::metrics::Metrics;
use crate::mutex::{Mutex, OwnedMutex};
use crate::name::{LockKind, LockName};
use crate::notices::Notices;
use crate::owner::ClientId;
use crate::read_write::RwLock;
use crate::scheme::{Context, Schemes};
use crate::semaphore::Semaphore;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A program's access to a store. Clones are the same client.
///
/// Threads of one client queue for a lock inside the process. Two clients exclude each other only
/// through the store, also within one process. One client per program is enough. Its threads, a few
/// for any number of locks, end when the last clone, handle and guard is dropped.
///
/// # Forks
///
/// A client and its locks belong to the process that made it. In a forked child every call fails
/// with [`Error::is_misuse`]; the child makes a client of its own. Fork before the program starts
/// threads, those of this library included: a mutex that another thread holds at the fork stays
/// locked in the child for ever.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<EngineHandle>, Variant);

impl Client {
    /// Returns a builder without a store.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Returns the lock of this name, held by threads and reentrant. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one: see [`LockName`]; and in a forked child.
    pub fn mutex<N>(&self, name: N) -> Result<Mutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Mutex::new(Arc::clone(&self.0), &self.mutex_name(name)?)
    }

    /// Returns the lock of this name, held by guards that can be sent to other threads, and not
    /// reentrant. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one: see [`LockName`]; and in a forked child.
    pub fn owned_mutex<N>(&self, name: N) -> Result<OwnedMutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        OwnedMutex::new(Arc::clone(&self.0), &self.mutex_name(name)?)
    }

    /// The name of a mutex, which is fair if the settings say so.
    fn mutex_name<N>(&self, name: N) -> Result<LockName, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Ok(name.try_into()?.of_kind(self.0.mutex_kind()))
    }

    /// Returns the lock of this name, held by threads and reentrant, and granted in the order of
    /// arrival over all clients and threads. Sends no request.
    ///
    /// The order is kept by a queue in the store, which costs a waiter a request each second; a
    /// waiter that dies delays the others for three seconds. Mutexes of the same name exclude it,
    /// are excluded, and do not wait in the queue. There is no hand-off inside the process.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one: see [`LockName`]; and in a forked child.
    /// [`Error::is_unsupported`] if the store has mutexes only.
    pub fn fair_mutex<N>(&self, name: N) -> Result<Mutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        let name = name.try_into()?.of_kind(LockKind::Fair);
        self.0.refuse_kind("fair locks").map_err(|error| error.on(&name))?;
        Mutex::new(Arc::clone(&self.0), &name)
    }

    /// Returns the election of this name: one leader among all clients that
    /// [campaign](Election::campaign), who holds the mutex of the name. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one: see [`LockName`]; and in a forked child.
    pub fn election<N>(&self, name: N) -> Result<Election, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Election::new(Arc::clone(&self.0), &self.mutex_name(name)?)
    }

    /// Returns the read-write lock of this name: several readers or one writer. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one: see [`LockName`]; and in a forked child.
    /// [`Error::is_unsupported`] if the store has mutexes only.
    pub fn rw_lock<N>(&self, name: N) -> Result<RwLock, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        RwLock::new(&self.0, &name.try_into()?)
    }

    /// Returns the semaphore of this name with this many permits. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one: see [`LockName`]; if `permits` is zero or more
    /// than [`Semaphore::MAX_LIMIT`]; and in a forked child. [`Error::is_unsupported`] if the store
    /// has mutexes only.
    pub fn semaphore<N>(&self, name: N, permits: u32) -> Result<Semaphore, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Semaphore::new(Arc::clone(&self.0), &name.try_into()?, permits)
    }

    /// Returns a client of the same store with another value for one option of the URL.
    ///
    /// For locks that need another setting than the rest, such as one whose key programs in other
    /// languages use in another wire format. The other settings, the clock and the event handler
    /// are those of this client.
    ///
    /// The same option and value return the same client while that client is in use. It has
    /// connections and a watchdog of its own, and excludes this client only through the store: use
    /// one of the two for each lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// # use distlock::{Client, DistLock};
    /// # let client = Client::builder().url("memory://")?.connect()?;
    /// let brief = client.with_option("watchdog", "2s")?;
    /// brief.mutex("orders:42")?.lock()?.unlock()?;
    /// # Ok::<(), distlock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if there is no such option, if its value is invalid, or if this
    /// client was given a backend instead of a URL. [`Error::is_misuse`] in a forked child.
    pub fn with_option(&self, option: &str, value: &str) -> Result<Self, Error> {
        self.0.refuse_if_forked()?;
        self.1.with_option(option, value)
    }

    /// Returns the identity of this client in the store.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.0.client
    }

    /// Returns what the store supports.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        self.0.abilities
    }

    /// Returns how many threads of this client wait for the lock of this name (Java's
    /// `getQueueLength`).
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one.
    pub fn queue_length<N>(&self, name: N) -> Result<usize, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Ok(self.0.waiting(&self.mutex_name(name)?))
    }

    /// Waits until the client has cleaned up every request whose outcome is unknown.
    ///
    /// Such a request was sent and never answered: an acquisition that may have taken a lock, or a
    /// release that may not have freed it. Call this before the program ends and after an error
    /// that says that the store is unavailable; otherwise such a lock may stay taken until its
    /// lease ends.
    ///
    /// Dropping the last clone, handle and guard of a client tries each cleanup once more, for at
    /// most the command timeout; this call waits longer and reports the result. It does not wait
    /// for guards, nor for quorum servers that a release did not wait for.
    ///
    /// # Blocking
    ///
    /// Until nothing is pending, at most for `wait`. Returns at once if nothing is pending, which
    /// is the rule.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if a cleanup is still pending then. The client continues in the
    /// background, and each lease ends in any case. [`Error::is_misuse`] in a forked child.
    pub fn wait_for_cleanup(&self, wait: Duration) -> Result<(), Error> {
        self.0.settle(wait)
    }

    /// Checks that the store answers: for readiness probes.
    ///
    /// Reads the lock `distlock:ping`, which a user with rights to some keys only must be allowed
    /// to read; takes nothing.
    ///
    /// # Blocking
    ///
    /// Until the store answers, at most for `wait`. A quorum answers when a majority of its servers
    /// does.
    ///
    /// # Errors
    ///
    /// Those of an attempt to lock, at once and not after the outage limit:
    /// [`Error::is_unavailable`] with the cause, [`Error::is_configuration`] if the store refuses
    /// this client. [`Error::is_misuse`] in a forked child.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// # use distlock::Client;
    /// # use std::time::Duration;
    /// # let client = Client::builder().url("memory://")?.connect()?;
    /// client.ping(Duration::from_secs(1))?;
    /// # Ok::<(), distlock::Error>(())
    /// ```
    pub fn ping(&self, wait: Duration) -> Result<(), Error> {
        self.0.ping(wait)
    }

    /// Returns what of the store's settings and state matters for locks, such as eviction, missing
    /// rights or replicas, each with its [level](FindingLevel) and how to mend it. For a program's
    /// start, and for the command `distlock doctor`.
    ///
    /// Changes nothing in the store. What the server does not let this client look at is
    /// [`Unknown`](FindingLevel::Unknown). A store in memory, and a backend that does not
    /// implement it, have nothing to find.
    ///
    /// # Blocking
    ///
    /// Some hundred round trips to each server, one server after the other, at most for `wait`.
    ///
    /// # Errors
    ///
    /// As [`ping`](Self::ping): the store could not be asked in time. A part of it that cannot be
    /// reached is a finding.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// # use distlock::{Client, FindingLevel};
    /// # use std::time::Duration;
    /// # let client = Client::builder().url("memory://")?.connect()?;
    /// for finding in client.diagnose(Duration::from_secs(10))? {
    ///     if finding.level >= FindingLevel::Warning {
    ///         eprintln!("{finding}");
    ///     }
    /// }
    /// # Ok::<(), distlock::Error>(())
    /// ```
    pub fn diagnose(&self, wait: Duration) -> Result<Vec<Finding>, Error> {
        self.0.diagnose(wait)
    }

    /// Returns the locks that are held in the store, by any client in this client's wire format,
    /// and whose names match `pattern`: a glob as in Redis' `SCAN .. MATCH`, where `*` is any name.
    ///
    /// Each is there once, in no order. A lock that is held from the beginning to the end is there;
    /// one that is taken or released meanwhile may be missing. Keys that are no locks are left out,
    /// and so are semaphores.
    /// In `format=token` any text may be a lock, so those are listed that look like an owner: a
    /// UUID, or that and a number, random digits of base 16 or 64, or ShedLock's, with an expiry.
    ///
    /// # Blocking
    ///
    /// The iterator asks for the next page when it needs one, for at most the command timeout each:
    /// one request for a thousand keys of the store, and one for each hundred locks among them.
    ///
    /// # Errors
    ///
    /// The iterator ends with [`Error::is_unavailable`] if a part of the store cannot be asked,
    /// [`Error::is_configuration`] if the user lacks a right, and [`ErrorKind::Unsupported`] where
    /// the format does not say which keys are locks, or the backend has no list.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// # use distlock::{Client, DistLock};
    /// # let client = Client::builder().url("memory://")?.connect()?;
    /// let _guard = client.owned_mutex("orders:42")?.lock()?;
    /// for lock in client.locks("orders:*").take(100) {
    ///     let (name, info) = lock?;
    ///     println!("{name}: {info:?}");
    /// }
    /// # Ok::<(), distlock::Error>(())
    /// ```
    pub fn locks(&self, pattern: &str) -> Locks {
        Locks::new(Arc::clone(&self.0), pattern)
    }

    /// Returns the state of these locks as [`DistLock::inspect`](crate::DistLock::inspect) does, in
    /// the same order, and with what else the store tells: see [`LockInfo`].
    ///
    /// # Blocking
    ///
    /// Two requests for each hundred names, for at most the command timeout in all.
    ///
    /// # Errors
    ///
    /// Each is that of one name: [`Error::is_unavailable`], [`Error::is_foreign_format`].
    pub fn inspect_all(&self, names: &[LockName]) -> Vec<Result<LockInfo, Error>> {
        self.0.inspect_all(names)
    }

    /// Returns how many lock names are in use in this client.
    ///
    /// A name is in use while it is held, waited for or has a handle, and for a third of a lease
    /// after its release, at most ten seconds. Unused names occupy no memory.
    #[must_use]
    pub fn names_in_use(&self) -> usize {
        self.0.names_in_use()
    }
}

/// For [`LockName`], whose conversion into itself cannot fail.
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Makes a [`Client`].
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::{Client, Event};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let client = Client::builder()
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
    config: Option<Config>,
    /// Applied at the end: a URL may come after it, and alone it is no store.
    owner: Option<String>,
    schemes: Option<Schemes>,
    backend: Option<Arc<dyn Backend>>,
    clock: Option<Arc<dyn Clock>>,
    events: Option<Arc<dyn EventHandler>>,
    #[cfg(feature = "metrics")]
    metrics_by_name: bool,
}

impl ClientBuilder {
    /// Takes the store and the settings from a URL.
    ///
    /// # Errors
    ///
    /// Those of [`Config::from_url`].
    pub fn url(self, url: &str) -> Result<Self, Error> {
        Ok(self.config(Config::from_url(url)?))
    }

    /// Takes the store and the settings from a configuration.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Changes settings that came from a URL or a file; the change wins.
    pub fn configure(mut self, change: impl FnOnce(Config) -> Config) -> Self {
        self.config = Some(change(self.config.unwrap_or_default()));
        self
    }

    /// Sets what the holder of a lock is called, for people: see [`Config::with_owner`]. It wins
    /// over the settings, also over those that come later.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the schemes that the URL may name. Default: `memory` alone here, and all built-in ones
    /// for the builder of the `distlock` crate.
    pub fn schemes(mut self, schemes: Schemes) -> Self {
        self.schemes = Some(schemes);
        self
    }

    /// Uses this backend and ignores the URL.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Uses this clock. For tests; a given backend must be on the same clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sends the client's events to this handler, on a thread of its own.
    pub fn events(mut self, handler: Arc<dyn EventHandler>) -> Self {
        self.events = Some(handler);
        self
    }

    /// Adds the label `lock` with the lock's name to the [metrics](crate::metrics) of locks.
    ///
    /// For a few fixed names. Each name makes a set of time series of its own, with a bucket for
    /// each limit of each histogram, which this client, the recorder and the metrics system keep: a
    /// name for each order or user exhausts them. The metrics of a name are registered at its first
    /// use, on the thread that uses it.
    #[cfg(feature = "metrics")]
    pub fn metrics_by_name(mut self) -> Self {
        self.metrics_by_name = true;
        self
    }

    /// Makes the client.
    ///
    /// # Blocking
    ///
    /// Not at all. An unreachable store is reported by the first request.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with every contradiction in the settings, for an unknown scheme
    /// or option, and if there is neither a URL nor a backend.
    pub fn connect(mut self) -> Result<Client, Error> {
        if (self.config.is_some() || self.backend.is_some())
            && let Some(owner) = self.owner.take()
        {
            self = self.configure(|config| config.with_owner(owner));
        }
        let variant = Variant::first(self.clone());
        Ok(Client(self.open()?, variant))
    }

    /// The schemes that a URL may name.
    fn known_schemes(&self) -> Schemes {
        self.schemes.clone().unwrap_or_else(|| Schemes::empty().with(MemoryScheme))
    }

    fn open(self) -> Result<Arc<EngineHandle>, Error> {
        let schemes = self.known_schemes();
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        #[cfg(feature = "tracing")]
        let told: Option<Arc<dyn EventHandler>> =
            Some(Arc::new(crate::trace::Traced::before(self.events)));
        #[cfg(not(feature = "tracing"))]
        let told = self.events;
        #[cfg(feature = "metrics")]
        let metrics = {
            let config = self.config.as_ref();
            let scheme = config.filter(|_| self.backend.is_none()).map_or("custom", Config::scheme);
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
    use crate::{DistLock, MemoryBackend};

    #[test]
    fn owner_is_kept_by_a_later_url_and_is_no_store() {
        let named = || Client::builder().owner("till-7");
        let refused = named().connect().unwrap_err();
        assert!(refused.to_string().contains("name a store"), "{refused}");
        let backend = Arc::new(MemoryBackend::new(Arc::new(SystemClock)));
        for builder in
            [named().url("memory://owner-and-url?owner=x").unwrap(), named().backend(backend)]
        {
            let client = builder.connect().unwrap();
            assert_eq!(label(&client).as_deref(), Some("till-7"));
        }
        let client = named().url("memory://owner-of-variant").unwrap().connect().unwrap();
        let other = client.with_option("owner", "till-8").unwrap();
        assert_eq!(label(&other).as_deref(), Some("till-8"));
    }

    #[cfg(feature = "toml")]
    #[test]
    fn owner_of_a_builder_is_that_of_its_set() {
        let configs = || crate::ConfigSet::from_toml("url = 'memory://owner-of-set'").unwrap();
        let set = Client::builder().owner("till-7").connect_set(configs()).unwrap();
        assert_eq!(label(&set.client("a").unwrap()).as_deref(), Some("till-7"));
        let refused = Client::builder().owner("").connect_set(configs()).unwrap_err();
        assert!(refused.is_configuration(), "{refused:?}");
    }

    /// What the store says of the holder of a lock of this client.
    fn label(client: &Client) -> Option<Arc<str>> {
        let lock = client.mutex("labelled").unwrap();
        let _guard = lock.lock().unwrap();
        let state = client.inspect_all(&[LockName::new("labelled").unwrap()]).remove(0).unwrap();
        state.holder?.label.map(|label| label.text)
    }
}
