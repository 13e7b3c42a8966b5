//! [`Mutex`] and [`OwnedMutex`]: a lock on one name, held by threads or by guards.

use crate::backend::LockInfo;
use crate::engine::EngineHandle;
use crate::error::Error;
use crate::guard::{LockGuard, OwnedGuard};
use crate::interrupt::Interrupt;
use crate::lock::{DistLock, UNBOUNDED};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::parts::SingleLock;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A reentrant lock on one name, held by threads. Clones, and all handles of one client for one
/// name, are the same lock.
///
/// See [`DistLock`] for its methods.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::{Client, DistLock};
///
/// let client = Client::builder().url("memory://")?.connect()?;
/// let lock = client.mutex("orders:42")?;
/// let guard = lock.lock()?;
/// let again = lock.lock()?;
/// assert_eq!(lock.hold_count(), 2);
/// assert_eq!(guard.fencing_token(), again.fencing_token());
/// drop(again);
/// guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Mutex(SingleLock);

/// A lock on one name that its guards own: a guard can be sent to another thread. Not reentrant: a
/// thread that locks it twice waits for itself, as with [`std::sync::Mutex`].
///
/// It has the methods of [`DistLock`] that are not about the calling thread, but does not implement
/// it: guards of a `DistLock` stay with their thread. Converted into a `DistLock`, as a member of a
/// [`MultiLock`](crate::MultiLock), it becomes the [`Mutex`] of its name: the same lock, held by
/// threads.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::Client;
///
/// let client = Client::builder().url("memory://")?.connect()?;
/// let lock = client.owned_mutex("orders:42")?;
/// let guard = lock.lock()?;
/// assert!(lock.try_lock()?.is_none());
/// std::thread::spawn(move || guard.unlock()).join().expect("no panic")?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct OwnedMutex(SingleLock);

impl Mutex {
    pub(crate) fn new(engine: Arc<EngineHandle>, name: &LockName) -> Result<Self, Error> {
        Ok(Self(SingleLock::new(engine, name)?))
    }

    /// Runs `work` under the lock, and releases it afterwards, also when `work` panics.
    ///
    /// # Errors
    ///
    /// Those of [`DistLock::lock`], before `work` runs, and of [`LockGuard::unlock`], after it has
    /// run: then its result is dropped, because another holder may have entered meanwhile.
    pub fn run<R>(&self, work: impl FnOnce(&LockGuard) -> R) -> Result<R, Error> {
        let lock: &dyn DistLock = self;
        lock.run(work)
    }
}

/// Implements [`DistLock`] for handles of a single lock that threads hold.
macro_rules! held_by_threads {
    ($($lock:ident),+) => {$(
        impl crate::lock::sealed::Sealed for $lock {
            fn parts(&self) -> crate::parts::Parts {
                crate::parts::Parts::Single(self.0.clone())
            }
        }

        impl crate::DistLock for $lock {
            fn acquire(
                &self,
                options: &crate::LockOptions,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                let hold = self.0.acquire(Some(crate::holder::thread_id()), options)?;
                Ok(hold.map(crate::LockGuard::new))
            }

            fn unlock(&self) -> Result<(), crate::Error> {
                self.0.unlock_detached()
            }

            fn inspect(&self) -> Result<crate::backend::LockInfo, crate::Error> {
                self.0.inspect()
            }

            fn force_unlock(&self) -> Result<bool, crate::Error> {
                self.0.force_unlock()
            }

            fn hold_count(&self) -> u32 {
                self.0.holds().map_or(0, |(holds, _)| holds)
            }

            fn is_held_by_current_thread(&self) -> bool {
                self.0.is_held_here()
            }

            fn name(&self) -> &crate::LockName {
                self.0.name()
            }
        }

        impl From<$lock> for std::sync::Arc<dyn crate::DistLock> {
            fn from(lock: $lock) -> Self {
                std::sync::Arc::new(lock)
            }
        }

        impl From<&$lock> for std::sync::Arc<dyn crate::DistLock> {
            fn from(lock: &$lock) -> Self {
                std::sync::Arc::new(lock.clone())
            }
        }

        impl std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($lock)).field(self.0.name()).finish()
            }
        }
    )+};
}
pub(crate) use held_by_threads;

held_by_threads!(Mutex);

impl From<&OwnedMutex> for Arc<dyn DistLock> {
    fn from(mutex: &OwnedMutex) -> Self {
        Arc::new(Mutex(mutex.0.clone()))
    }
}

impl OwnedMutex {
    pub(crate) fn new(engine: Arc<EngineHandle>, name: &LockName) -> Result<Self, Error> {
        Ok(Self(SingleLock::new(engine, name)?))
    }

    /// See [`DistLock::acquire`].
    ///
    /// # Errors
    ///
    /// See [`DistLock`].
    pub fn acquire(&self, options: &LockOptions) -> Result<Option<OwnedGuard>, Error> {
        self.0.acquire_owned(options)
    }

    /// See [`DistLock::lock`].
    ///
    /// # Errors
    ///
    /// See [`DistLock`].
    pub fn lock(&self) -> Result<OwnedGuard, Error> {
        Ok(self.acquire(&LockOptions::new())?.expect(UNBOUNDED))
    }

    /// See [`DistLock::lock_with`].
    ///
    /// # Errors
    ///
    /// See [`DistLock`].
    pub fn lock_with(&self, options: &LockOptions) -> Result<OwnedGuard, Error> {
        Ok(self.acquire(options.without_deadline()?)?.expect(UNBOUNDED))
    }

    /// See [`DistLock::lock_interruptibly`].
    ///
    /// # Errors
    ///
    /// See [`DistLock`].
    pub fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<OwnedGuard, Error> {
        self.lock_with(&LockOptions::new().interrupt(interrupt))
    }

    /// See [`DistLock::try_lock`].
    ///
    /// # Errors
    ///
    /// See [`DistLock`].
    pub fn try_lock(&self) -> Result<Option<OwnedGuard>, Error> {
        self.try_lock_with(&LockOptions::new())
    }

    /// See [`DistLock::try_lock_for`].
    ///
    /// # Errors
    ///
    /// See [`DistLock`].
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<OwnedGuard>, Error> {
        self.try_lock_with(&LockOptions::new().wait(wait))
    }

    /// See [`DistLock::try_lock_with`].
    ///
    /// # Errors
    ///
    /// See [`DistLock`].
    pub fn try_lock_with(&self, options: &LockOptions) -> Result<Option<OwnedGuard>, Error> {
        self.acquire(&options.with_deadline())
    }

    /// Runs `work` under the lock, and releases it afterwards, also when `work` panics.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), before `work` runs, and of [`OwnedGuard::unlock`], after it
    /// has run.
    pub fn run<R>(&self, work: impl FnOnce(&OwnedGuard) -> R) -> Result<R, Error> {
        let guard = self.lock()?;
        let result = work(&guard);
        guard.unlock()?;
        Ok(result)
    }

    /// See [`DistLock::inspect`].
    ///
    /// # Errors
    ///
    /// See [`DistLock::inspect`].
    pub fn inspect(&self) -> Result<LockInfo, Error> {
        self.0.inspect()
    }

    /// See [`DistLock::is_locked`].
    ///
    /// # Errors
    ///
    /// See [`DistLock::inspect`].
    pub fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inspect()?.holder.is_some())
    }

    /// See [`DistLock::time_to_live`].
    ///
    /// # Errors
    ///
    /// See [`DistLock::inspect`].
    pub fn time_to_live(&self) -> Result<Option<Duration>, Error> {
        Ok(self.inspect()?.time_to_live())
    }

    /// See [`DistLock::force_unlock`].
    ///
    /// # Errors
    ///
    /// See [`DistLock::force_unlock`].
    pub fn force_unlock(&self) -> Result<bool, Error> {
        self.0.force_unlock()
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.0.name()
    }
}

impl fmt::Debug for OwnedMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedMutex").field(self.name()).finish()
    }
}
