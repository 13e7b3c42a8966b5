//! [`Client`]: a program's access to a store; it makes the locks.

mod builder;
mod locks;
#[cfg(feature = "toml")]
mod set;
mod variants;

pub use self::builder::{ClientBuilder, builder};
pub use self::locks::Locks;
#[cfg(feature = "toml")]
pub use self::set::ClientSet;

use self::variants::Variant;
use crate::api::election::Election;
use crate::api::mutex::{Mutex, OwnedMutex};
use crate::api::read_write::RwLock;
use crate::api::semaphore::Semaphore;
use crate::backend::diagnosis::Finding;
#[cfg(doc)]
use crate::backend::diagnosis::FindingLevel;
use crate::backend::owner::ClientId;
use crate::backend::{Abilities, LockInfo};
use crate::engine::EngineHandle;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::kind::LockKind;
use crate::name::LockName;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A program's access to a store. Clones are the same client.
///
/// Threads of one client queue for a lock inside the process. Two clients exclude each other only
/// through the store, even within one process. One client per program is enough. Its threads, a few
/// for any number of locks, end when the last clone, handle and guard is dropped.
///
/// # Forks
///
/// A client and its locks belong to the process that made it. In a forked child, every call that
/// makes a lock or sends a request fails with [`Error::is_misuse`]; the child makes its own client.
/// Fork before the program starts threads, those of this library included: a mutex that another
/// thread holds at the fork stays locked in the child for ever.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// let client = distlock::builder().url("memory://")?.connect()?;
/// let guard = client.mutex("orders:42")?.lock()?;
/// guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Client(pub(crate) Arc<EngineHandle>, Variant);

impl Client {
    fn built_by(builder: ClientBuilder) -> Result<Self, Error> {
        let variant = Variant::first(builder.clone());
        Ok(Self(builder.open()?, variant))
    }

    /// Returns the reentrant mutex of this name, which a thread holds. It is a [fair
    /// mutex](Self::fair_mutex) if the settings say so. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is invalid (see [`LockName`]), and in a forked child.
    pub fn mutex<N>(&self, name: N) -> Result<Mutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Mutex::new(Arc::clone(&self.0), &self.mutex_name(name)?)
    }

    /// Returns the mutex of this name that a guard holds, and not a thread: it is not reentrant,
    /// and the guard can be sent to other threads. It is a [fair mutex](Self::fair_mutex) if the
    /// settings say so. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is invalid (see [`LockName`]), and in a forked child.
    pub fn owned_mutex<N>(&self, name: N) -> Result<OwnedMutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        OwnedMutex::new(Arc::clone(&self.0), &self.mutex_name(name)?)
    }

    /// Returns the name of a mutex, which is fair if the settings say so.
    fn mutex_name<N>(&self, name: N) -> Result<LockName, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        let kind = LockKind::of_mutex(self.0.is_fair());
        Ok(name.try_into()?.of_kind(kind))
    }

    /// Returns the reentrant mutex of this name, which a thread holds, and which is granted in the
    /// order of arrival over all clients and threads. Sends no request.
    ///
    /// A queue in the store keeps the order, which by default costs each waiter one request per
    /// second. A waiter that does not react delays the waiters behind it for at most [three
    /// seconds](crate::Config::with_fair_presence) by default. A fair mutex and the plain mutexes
    /// of its name exclude each other. On Redis, a client that waits for a plain mutex has one
    /// place in the same queue. The threads of a process do not hand a fair mutex to each other.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is invalid (see [`LockName`]), and in a forked child.
    /// [`Error::is_unsupported`] if the store has mutexes only.
    pub fn fair_mutex<N>(&self, name: N) -> Result<Mutex, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        let name = name.try_into()?.of_kind(LockKind::of_mutex(true));
        self.0.refuse_fair().map_err(|error| error.on(&name))?;
        Mutex::new(Arc::clone(&self.0), &name)
    }

    /// Returns the election of this name: one leader among all clients that
    /// [campaign](Election::campaign). The leader holds the mutex of the name. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is invalid (see [`LockName`]), and in a forked child.
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
    /// [`Error::is_misuse`] if the name is invalid (see [`LockName`]), and in a forked child.
    /// [`Error::is_unsupported`] if the store has mutexes only.
    pub fn rw_lock<N>(&self, name: N) -> Result<RwLock, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        RwLock::new(&self.0, &name.try_into()?, false)
    }

    /// Returns the read-write lock of this name that admits readers and writers in the order of
    /// arrival over all clients and threads. Adjacent readers enter together; a reader does not
    /// overtake a waiting writer. Sends no request.
    ///
    /// The order is kept as for a [fair mutex](Self::fair_mutex), at the same cost. The thread that
    /// holds the write lock gets the read lock at once, even if other threads wait. A fair and
    /// a plain read-write lock of one name exclude each other. On Redis, a client that waits for
    /// the plain lock waits in the same queue.
    ///
    /// # Errors
    ///
    /// As [`rw_lock`](Self::rw_lock).
    pub fn fair_rw_lock<N>(&self, name: N) -> Result<RwLock, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        RwLock::new(&self.0, &name.try_into()?, true)
    }

    /// Returns the semaphore of this name with this many permits. It is a [fair
    /// semaphore](Self::fair_semaphore) if the settings say so. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is invalid (see [`LockName`]), if `permits` is zero or more
    /// than [`Semaphore::MAX_LIMIT`], and in a forked child. [`Error::is_unsupported`] if the store
    /// has mutexes only.
    pub fn semaphore<N>(&self, name: N, permits: u32) -> Result<Semaphore, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Semaphore::new(
            Arc::clone(&self.0),
            &name.try_into()?,
            permits,
            self.0.is_fair(),
        )
    }

    /// Returns the semaphore of this name with this many permits, granted in the order of arrival
    /// over all clients and threads, whatever number a request wants. Sends no request.
    ///
    /// The order is kept as for a [fair mutex](Self::fair_mutex), at the same cost. While the first
    /// waiter waits for its permits, later waiters wait, even if they want fewer permits and enough
    /// are free. A plain semaphore of the same name shares the permits. On Redis, a waiter of the
    /// plain semaphore waits in the same queue, but an attempt that does not wait takes permits
    /// that are free.
    ///
    /// # Errors
    ///
    /// As [`semaphore`](Self::semaphore).
    pub fn fair_semaphore<N>(&self, name: N, permits: u32) -> Result<Semaphore, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Semaphore::new(Arc::clone(&self.0), &name.try_into()?, permits, true)
    }

    /// Returns a client of the same store with another value for one option of the URL.
    ///
    /// For locks that need a different setting: for example, another wire format for a lock that
    /// programs in other languages also use. The returned client has the other settings, the clock
    /// and the event handler of this client.
    ///
    /// Repeated calls with one option and value return the same client while it is in use. The
    /// returned client has its own connections and watchdog, and excludes this client only through
    /// the store: use only one of the two clients for each lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// # let client = distlock::builder().url("memory://")?.connect()?;
    /// let brief = client.with_option("watchdog", "2s")?;
    /// brief.mutex("orders:42")?.lock()?.unlock()?;
    /// # Ok::<(), distlock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if there is no such option, if its value is invalid, or if this
    /// client was given a backend, with or without a URL. [`Error::is_unsupported`] if the store
    /// does not support the setting. [`Error::is_misuse`] in a forked child.
    pub fn with_option(&self, option: &str, value: &str) -> Result<Self, Error> {
        self.0.refuse_if_forked()?;
        self.1.with_option(option, value)
    }

    /// Returns the identity of this client in the store.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.0.client
    }

    /// Returns the abilities of the store.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        self.0.abilities
    }

    /// Returns how many threads of this client wait for the [mutex](Self::mutex) of this name
    /// (Java's `getQueueLength`).
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is invalid.
    pub fn queue_length<N>(&self, name: N) -> Result<usize, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        Ok(self.0.waiting(&self.mutex_name(name)?))
    }

    /// Waits until the client has cleaned up every request whose outcome is unknown.
    ///
    /// Such a request was sent and never answered: an acquisition that may have been granted, or a
    /// release that may not have freed the lock. Call this before the program ends, and after an
    /// error that reports the store as unavailable; otherwise such a lock may stay held until its
    /// lease ends.
    ///
    /// Dropping the last clone, handle and guard of a client tries each cleanup once more, for at
    /// most the command timeout; this call waits longer and reports the result. This call does not
    /// wait for guards, nor for quorum servers that a release did not wait for.
    ///
    /// # Blocking
    ///
    /// Until nothing is pending, at most for `wait`. Usually nothing is pending, and the call
    /// returns at once.
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
    /// Reads the lock `distlock:ping`, and acquires nothing. A user whose rights are limited to
    /// some keys needs the right to read this one.
    ///
    /// # Blocking
    ///
    /// Until the store answers, at most for `wait`. A quorum answers when a majority of its servers
    /// does.
    ///
    /// # Errors
    ///
    /// The errors of an attempt to lock, at once and not after the outage limit:
    /// [`Error::is_unavailable`] with the cause, [`Error::is_configuration`] if the store refuses
    /// this client. [`Error::is_misuse`] in a forked child.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// # use std::time::Duration;
    /// # let client = distlock::builder().url("memory://")?.connect()?;
    /// client.ping(Duration::from_secs(1))?;
    /// # Ok::<(), distlock::Error>(())
    /// ```
    pub fn ping(&self, wait: Duration) -> Result<(), Error> {
        self.0.ping(wait)
    }

    /// Queries the store's settings and state, and returns findings that matter for locks, such as
    /// eviction, missing rights or replicas. Each finding has a [level](FindingLevel), and each
    /// problem has a remedy. For a program's start, and for the command `distlock doctor`.
    ///
    /// Changes nothing in the store. A setting that the server does not show to this client is
    /// reported as [`Unknown`](FindingLevel::Unknown). The in-memory store has no findings, and
    /// neither has a backend without a diagnosis.
    ///
    /// # Blocking
    ///
    /// Less than a hundred round trips to each server, one server after the other, at most for
    /// `wait`.
    ///
    /// # Errors
    ///
    /// The errors of [`ping`](Self::ping), if no part of the store has answered in time. If only
    /// a part of the store is unreachable, that is a finding.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// # use distlock::admin::FindingLevel;
    /// # use std::time::Duration;
    /// # let client = distlock::builder().url("memory://")?.connect()?;
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
    /// and whose names match `pattern`: a glob as in Redis' `SCAN .. MATCH`, where `*` matches any
    /// name.
    ///
    /// Each lock is listed once, in no order. A lock that is held during the whole listing is
    /// included; a lock that is acquired or released meanwhile may be missing. Semaphores and keys
    /// that are not locks are excluded. In `format=token` the value of a lock may be any text. The
    /// list then contains the keys that have an expiry and a value that looks like an owner: a
    /// UUID, with or without a number, random digits of base 16 or 64, or ShedLock's format.
    ///
    /// # Blocking
    ///
    /// The iterator requests the next page when it needs one, and waits for it for at most the
    /// command timeout. A page takes one request for a thousand keys of the store, and one request
    /// for each hundred locks among these keys.
    ///
    /// # Errors
    ///
    /// The iterator ends with [`Error::is_unavailable`] if a part of the store is unavailable,
    /// [`Error::is_configuration`] if the user lacks a right, and [`ErrorKind::Unsupported`] if the
    /// format does not show which keys are locks, or the backend has no list.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// # let client = distlock::builder().url("memory://")?.connect()?;
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

    /// Queries the state of these locks as [`DistLock::inspect`](crate::DistLock::inspect) does,
    /// and returns it in the order of `names`, with the store's additional data: see [`LockInfo`].
    ///
    /// # Blocking
    ///
    /// Two requests for each hundred names, for at most the command timeout in all.
    ///
    /// # Errors
    ///
    /// Each result is for one name: [`Error::is_unavailable`], [`Error::is_foreign_format`].
    pub fn inspect_all(&self, names: &[LockName]) -> Vec<Result<LockInfo, Error>> {
        self.0.inspect_all(names)
    }

    /// Returns how many lock names are in use in this client.
    ///
    /// A name is in use while it is held, waited for or has a handle, and after its release until
    /// the next check of the name: at most a third of a lease, and at most ten seconds. Unused
    /// names occupy no memory.
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
