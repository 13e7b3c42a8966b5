//! [`Client`]: a program's connection to a store, from which it gets its locks.

mod kin;

use self::kin::Kin;
use crate::backend::{Abilities, Backend};
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::engine::{Alive, Engine};
use crate::error::Error;
use crate::event::{EventHandler, Events};
use crate::memory::MemoryScheme;
use crate::mutex::{Mutex, OwnedMutex};
use crate::name::LockName;
use crate::notices::Notices;
use crate::owner::ClientId;
use crate::scheme::{Context, Schemes};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A program's connection to a store. Clones are one and the same client.
///
/// Threads of one client queue for a lock inside the process; two clients are strangers to each
/// other, also in one process. One for each program is enough. Its threads, a few for any number of
/// locks, end when the last clone, handle and guard is gone.
///
/// # Forks
///
/// A client and its locks belong to the process that made it: in a forked child they refuse
/// everything, and the child makes a client of its own. Fork before the program has threads, this
/// library's included: what another thread has locked at the fork, in any library, stays locked in
/// the child for ever.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Alive>, Kin);

impl Client {
    /// A builder without a store.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The lock of this name, held by threads and reentrant. Asks no store.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one: see [`LockName`]; and in a forked child.
    pub fn mutex<N>(&self, name: N) -> Result<Mutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Mutex::new(Arc::clone(&self.0), &name.try_into()?)
    }

    /// The lock of this name, held by guards that can be sent to other threads, and not reentrant.
    /// Asks no store.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is not one: see [`LockName`]; and in a forked child.
    pub fn owned_mutex<N>(&self, name: N) -> Result<OwnedMutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        OwnedMutex::new(Arc::clone(&self.0), &name.try_into()?)
    }

    /// A client of the same store with another value for one option of the URL: for locks that need
    /// it otherwise than the rest, such as one whose key programs in other languages have in
    /// another wire format. The rest of the settings, the clock and the event handler are this
    /// one's.
    ///
    /// It is the same client each time while it is in use. It has connections and a watchdog of its
    /// own, and it and this one are strangers to each other: use one of them for each lock.
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
    /// [`Error::is_configuration`] if there is no such option, if its value makes no sense, or if
    /// this client was given a backend instead of a URL. [`Error::is_misuse`] in a forked child.
    pub fn with_option(&self, option: &str, value: &str) -> Result<Self, Error> {
        self.0.refuse_if_forked()?;
        self.1.differing_in(option, value)
    }

    /// What this client calls itself in the store.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.0.client
    }

    /// What its store can do.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        self.0.abilities
    }

    /// How many threads of this client wait for the lock of this name now (Java's
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
        Ok(self.0.waiting(&name.try_into()?))
    }

    /// Waits until everything that is in doubt is cleaned up: attempts and releases that were sent
    /// and never answered, which may have taken a lock, or not have freed it. Call it before the
    /// program ends and after an error that says that the store could not be asked; otherwise such
    /// a lock may stay taken for as long as its lease.
    ///
    /// When the last clone, handle and guard of a client goes, each doubt is tried once more, for
    /// at most the command time-out; this waits for longer, and says what came of it. It does not
    /// wait for guards. Servers of a quorum that a release did not wait for are none of its doubts:
    /// they are waited for when the client goes.
    ///
    /// # Blocking
    ///
    /// Until nothing is in doubt, at most for `wait`. At once if nothing is, which is the rule.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if something is still in doubt then. It is tried on in the
    /// background, and leases end whatever may be left. [`Error::is_misuse`] in a forked child.
    pub fn wait_for_cleanup(&self, wait: Duration) -> Result<(), Error> {
        self.0.settle(wait)
    }

    /// Whether the store can be asked, and answers: for a program that is to say whether it is
    /// ready. Looks at the lock `distlock:ping`, which a user with rights to some keys only must be
    /// allowed to read; takes nothing.
    ///
    /// # Blocking
    ///
    /// Until the store answers, at most for `wait`. A quorum answers when most of its servers do.
    ///
    /// # Errors
    ///
    /// As those of an attempt to lock, at once and not after the outage limit:
    /// [`Error::is_unavailable`] with what keeps the store from an answer,
    /// [`Error::is_configuration`] if it turns this client away. [`Error::is_misuse`] in a forked
    /// child.
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

    /// How many lock names are in use here: held, waited for, or with a handle, or released within
    /// the last third of a lease, ten seconds at most. A name that is not used any more leaves
    /// nothing behind.
    #[must_use]
    pub fn names_in_use(&self) -> usize {
        self.0.names_in_use()
    }
}

/// A name that is one already cannot fail to be one.
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
    schemes: Option<Schemes>,
    backend: Option<Arc<dyn Backend>>,
    clock: Option<Arc<dyn Clock>>,
    events: Option<Arc<dyn EventHandler>>,
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

    /// Takes the store and the settings from here.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Changes settings that were taken from a URL or a file; what is set here wins.
    pub fn configure(mut self, change: impl FnOnce(Config) -> Config) -> Self {
        self.config = Some(change(self.config.unwrap_or_default()));
        self
    }

    /// The schemes that the URL is looked up in. Default: `memory` alone here, and all that are
    /// built in where the builder comes from the `distlock` crate.
    pub fn schemes(mut self, schemes: Schemes) -> Self {
        self.schemes = Some(schemes);
        self
    }

    /// Uses this store, whatever the URL says.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Uses this clock. For tests; a backend that is given must be on the same one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Tells this handler what happens to the client's locks, on a thread of its own.
    pub fn events(mut self, handler: Arc<dyn EventHandler>) -> Self {
        self.events = Some(handler);
        self
    }

    /// Makes the client. Does not wait for the store: one that is down is reported when it is first
    /// asked.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with every contradiction in the settings, for an unknown scheme
    /// or option, and where there is neither a URL nor a backend.
    pub fn connect(self) -> Result<Client, Error> {
        let kin = Kin::none(self.clone());
        Ok(Client(self.open()?, kin))
    }

    fn open(self) -> Result<Arc<Alive>, Error> {
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        #[cfg(feature = "tracing")]
        let told: Option<Arc<dyn EventHandler>> =
            Some(Arc::new(crate::trace::Traced::before(self.events)));
        #[cfg(not(feature = "tracing"))]
        let told = self.events;
        let events = told.map_or_else(|| Ok(Events::default()), Events::to)?;
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
                let schemes = self.schemes.unwrap_or_else(|| Schemes::empty().with(MemoryScheme));
                let backend = schemes.open(&config, &context)?;
                (config, backend)
            }
            (None, None) => {
                return Err(Error::configuration(
                    "there is neither a URL nor a backend: which store is it to be?",
                ));
            }
        };
        config.warn_of_variables(&notices);
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
