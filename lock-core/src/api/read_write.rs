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
/// [`read`](Self::read) and [`write`](Self::write) are locks with the methods of a
/// [`Mutex`](crate::Mutex), held by threads and reentrant.
///
/// - Each reader has its own lease: a dead reader blocks writers until that lease ends, even if
///   other readers renew theirs.
/// - While a writer waits, no new reader enters. On Redis, readers that wait get their turn behind
///   that writer; in memory, both compete when a writer releases. A waiting writer that dies keeps
///   readers out for at most three seconds. A [fair lock](crate::Client::fair_rw_lock) admits both
///   in the order of their arrival.
/// - The thread that writes may also read, and continue to read after it has ended writing
///   (downgrade). A thread that reads cannot write: it would deadlock with itself, and gets
///   [`Error::is_misuse`] at once. So does a thread that combines reading with a minimum hold
///   ([`LockOptions::at_least`](crate::LockOptions::at_least)) of its write lock.
/// - Writers get fencing tokens that grow. A reader gets the token of the last writer while the
///   store knows it, and otherwise none.
///
/// A read-write lock and the mutexes of its name exclude each other.
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

/// Implements the methods for guards that belong to no thread.
macro_rules! held_by_guards {
    ($($lock:ident),+) => {$(
        impl $lock {
            /// Acquires the lock for a guard that belongs to no thread and can be sent to another;
            /// `None` if the lock was busy until the end of the wait. Without a wait it waits for
            /// ever.
            ///
            /// Such a guard is not reentrant, and is unrelated to the other guards of its thread: a
            /// thread that reads and then requests the write lock deadlocks with itself.
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
