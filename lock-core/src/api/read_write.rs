//! [`RwLock`]: several readers or one writer, over all clients.

use crate::api::guard::OwnedGuard;
use crate::api::parts::SingleLock;
use crate::call::options::LockOptions;
use crate::engine::EngineHandle;
use crate::error::Error;
use crate::kind::LockKind;
use crate::name::LockName;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A read-write lock: several readers or one writer, over all clients that use its name.
///
/// [`read`](Self::read) and [`write`](Self::write) return its two locks. Both are reentrant, are
/// held by threads, and have the methods of a [`Mutex`](crate::Mutex).
///
/// - Each reader has its own lease: a dead reader blocks writers until its own lease ends, even if
///   other readers renew their leases.
/// - While a writer waits, no new reader enters, unless the setting `writers` is `equal`. On Redis,
///   waiting readers enter after that writer; in memory, waiting readers and writers compete when a
///   writer releases the lock. If a waiting writer dies, it keeps readers out for at most
///   `fair_presence`, by default three seconds. A [fair lock](crate::Client::fair_rw_lock) admits
///   readers and writers in the order of their arrival.
/// - A thread that holds the write lock may also acquire the read lock, and keep it after it has
///   released the write lock (downgrade). A thread that holds only the read lock cannot acquire the
///   write lock: it would wait for itself, so it gets [`Error::is_misuse`] at once. A thread that
///   would hold both locks, and the write lock with a minimum hold
///   ([`LockOptions::at_least`](crate::LockOptions::at_least)), also gets this error.
/// - Writers get growing fencing tokens. A reader gets a token that is not smaller than the token
///   of any earlier writer if the store still has the token counter of the name, and otherwise
///   none.
///
/// A read-write lock and a mutex of the same name exclude each other.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// let client = distlock::builder().url("memory://")?.connect()?;
/// let lock = client.rw_lock("prices")?;
/// let writing = lock.write().lock()?;
/// let reading = lock.read().lock()?;
/// writing.unlock()?; // others may read now, too
/// assert!(lock.read().is_held_by_current_thread());
/// reading.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct RwLock {
    read: ReadLock,
    write: WriteLock,
}

/// The read lock of an [`RwLock`].
#[derive(Clone)]
pub struct ReadLock(pub(crate) SingleLock);

/// The write lock of an [`RwLock`].
#[derive(Clone)]
pub struct WriteLock(pub(crate) SingleLock);

impl RwLock {
    pub(crate) fn new(
        engine: &Arc<EngineHandle>,
        name: &LockName,
        is_fair: bool,
    ) -> Result<Self, Error> {
        engine
            .refuse_kind("read-write locks")
            .map_err(|error| error.on(name))?;
        let part = |kind| SingleLock::new(Arc::clone(engine), &name.of_kind(kind));
        let [read, write] = LockKind::of_read_write(is_fair);
        Ok(Self {
            read: ReadLock(part(read)?),
            write: WriteLock(part(write)?),
        })
    }

    /// Returns the lock for reading.
    #[must_use]
    pub fn read(&self) -> &ReadLock {
        &self.read
    }

    /// Returns the lock for writing.
    #[must_use]
    pub fn write(&self) -> &WriteLock {
        &self.write
    }
}

/// Implements `acquire_owned`, whose guards belong to no thread.
macro_rules! held_by_guards {
    ($($lock:ident),+) => {$(
        impl $lock {
            /// Acquires the lock for a guard that belongs to no thread, so that it can be sent to
            /// another thread. Returns `None` if the lock was busy until the end of the wait. If
            /// `wait` is `None`, the wait has no time limit.
            ///
            /// Such a guard is not reentrant, and has nothing to do with the other guards of the
            /// calling thread: a thread that has a read guard of this kind and requests the write
            /// lock waits for itself until the end of the wait.
            ///
            /// # Blocking
            ///
            /// As [`acquire`](Self::acquire).
            ///
            /// # Errors
            ///
            /// See [`DistLock`](crate::DistLock#errors).
            pub fn acquire_owned(
                &self,
                wait: Option<Duration>,
                options: &LockOptions,
            ) -> Result<Option<OwnedGuard>, Error> {
                self.0.acquire_owned(wait, options)
            }
        }
    )+};
}

held_by_guards!(ReadLock, WriteLock);

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RwLock").field(self.read.0.name()).finish()
    }
}
