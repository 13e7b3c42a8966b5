//! [`DistLock`]: the methods of a lock, for code that accepts any lock.

use crate::api::guard::LockGuard;
use crate::backend::LockInfo;
use crate::call::interrupt::Interrupt;
use crate::call::options::LockOptions;
use crate::error::Error;
use crate::name::LockName;
use std::fmt;
use std::time::Duration;

/// The panic message if a wait without a deadline returned "busy", which never happens.
pub(crate) const UNBOUNDED: &str = "a wait without a deadline ends with the lock or an error";

/// Defines the methods that only call `acquire`, `inspect` or each other, for a handle type and for
/// the trait.
macro_rules! derived_verbs {
    ($vis:vis, $guard:ident) => {
        /// Waits for the lock. The watchdog renews the lock until the guard is dropped, unless the
        /// settings have a fixed `lease`.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn lock(&self) -> Result<$guard, Error> {
            Ok(self.acquire(None, &LockOptions::new())?.expect(UNBOUNDED))
        }

        /// Waits for the lock, with these options.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn lock_with(&self, options: &LockOptions) -> Result<$guard, Error> {
            Ok(self.acquire(None, options)?.expect(UNBOUNDED))
        }

        /// Waits for the lock until `interrupt` fires.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<$guard, Error> {
            self.lock_with(&LockOptions::new().interrupt(interrupt))
        }

        /// Acquires the lock if it is free now. A mutex or a write lock counts as busy while
        /// threads of this client wait for it.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn try_lock(&self) -> Result<Option<$guard>, Error> {
            self.try_lock_with(&LockOptions::new())
        }

        /// Acquires the lock with these options if it is free now.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn try_lock_with(&self, options: &LockOptions) -> Result<Option<$guard>, Error> {
            self.try_lock_for_with(Duration::ZERO, options)
        }

        /// Waits for the lock for at most `wait`. Zero has the effect of
        /// [`try_lock`](Self::try_lock).
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn try_lock_for(&self, wait: Duration) -> Result<Option<$guard>, Error> {
            self.try_lock_for_with(wait, &LockOptions::new())
        }

        /// Waits for the lock for at most `wait`, with these options.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn try_lock_for_with(
            &self,
            wait: Duration,
            options: &LockOptions,
        ) -> Result<Option<$guard>, Error> {
            self.acquire(Some(wait), options)
        }

        /// Queries the store, and returns whether the lock is held there.
        ///
        /// # Blocking
        ///
        /// As [`inspect`](Self::inspect).
        ///
        /// # Errors
        ///
        /// As [`inspect`](Self::inspect).
        $vis fn is_locked(&self) -> Result<bool, Error> {
            Ok(self.inspect()?.holder.is_some())
        }

        /// Queries the store for the remaining lease of the holder: `None` if the lock is free,
        /// [`Duration::MAX`] if the lease has no end. The holder itself must not rely on this
        /// value, but on [`remaining`](LockGuard::remaining) of its guard, which allows for delays
        /// and clock drift.
        ///
        /// # Blocking
        ///
        /// As [`inspect`](Self::inspect).
        ///
        /// # Errors
        ///
        /// As [`inspect`](Self::inspect).
        $vis fn time_to_live(&self) -> Result<Option<Duration>, Error> {
            Ok(self.inspect()?.time_to_live())
        }
    };
}
pub(crate) use derived_verbs;

pub(crate) mod sealed {
    use crate::api::parts::Parts;

    /// Only this crate implements [`DistLock`](crate::DistLock); a new store implements
    /// [`Backend`](crate::Backend).
    pub trait Sealed {
        /// Returns the single locks that this lock consists of.
        fn parts(&self) -> Parts;
    }
}

/// A lock on a name in a store, which threads, processes and machines share.
///
/// The types that implement this trait also have its methods as inherent methods, so a caller need
/// not import the trait. The trait is for code that accepts any lock, as `Arc<dyn DistLock>` or as
/// a generic parameter.
///
/// The methods are those of Java's `Lock` and Redisson's `RLock`. The lock is reentrant: the thread
/// that holds the lock may lock it again, which sends no request unless a longer lease is needed.
/// Each guard ends one hold.
///
/// | Java | here |
/// |---|---|
/// | `lock()` | [`lock()`](Self::lock) |
/// | `lock(lease, unit)` | [`lock_with(&LockOptions::new().lease(l))`](Self::lock_with) |
/// | `lockInterruptibly()` | [`lock_interruptibly(&interrupt)`](Self::lock_interruptibly) |
/// | `lockInterruptibly(lease, unit)` | [`lock_with`](Self::lock_with), lease and interrupt |
/// | `tryLock()` | [`try_lock()`](Self::try_lock) |
/// | `tryLock(wait, unit)` | [`try_lock_for(w)`](Self::try_lock_for) |
/// | `tryLock(wait, lease, unit)` | [`try_lock_for_with`](Self::try_lock_for_with), with a lease |
/// | `unlock()` | [`LockGuard::unlock`], or [`unlock()`](Self::unlock) of a detached hold |
/// | `forceUnlock()` | [`force_unlock()`](Self::force_unlock) |
/// | `isLocked()` | [`is_locked()`](Self::is_locked) |
/// | `isHeldByCurrentThread()` | [`is_held_by_current_thread()`](Self::is_held_by_current_thread) |
/// | `isHeldByThread(id)` | none; [`inspect()`](Self::inspect) returns the holder in the store |
/// | `getHoldCount()` | [`hold_count()`](Self::hold_count) |
/// | `remainTimeToLive()` | [`time_to_live()`](Self::time_to_live) |
/// | `getName()` | [`name()`](Self::name) |
/// | `newCondition()` | none; Redisson has none either |
/// | `RedissonClient.getLock(name)` | [`client.mutex(name)`](crate::Client::mutex) |
///
/// The methods whose names begin with `lock` wait without a time limit and return a guard. The
/// methods whose names begin with `try_` return `None` if the lock was busy until the end of the
/// wait. An error never means "busy".
///
/// # Errors
///
/// Every method that acquires the lock can return these errors:
/// - [`Error::is_unavailable`]: the store was unavailable at the end of the wait or, without a
///   deadline, for the outage limit. Also if its grant arrived after the end of the lease.
/// - [`Error::is_insufficient_replicas`]: the lock was free, but too few of the requested
///   `replicas` confirmed the grant, which was revoked.
/// - [`Error::is_interrupted`]: the interrupt in the options fired.
/// - [`Error::is_lost`]: this thread lost the lock and still has guards of the lost acquisition:
///   drop these guards first.
/// - [`Error::is_foreign_format`]: the value under the lock's key is not a lock in this wire
///   format.
/// - [`Error::is_configuration`], [`Error::is_misuse`], [`Error::is_unsupported`]: settings or code
///   must be changed.
pub trait DistLock: sealed::Sealed + Send + Sync + fmt::Debug {
    /// See [`Mutex::acquire`](crate::Mutex::acquire).
    fn acquire(
        &self,
        wait: Option<Duration>,
        options: &LockOptions,
    ) -> Result<Option<LockGuard>, Error>;

    /// See [`Mutex::unlock`](crate::Mutex::unlock).
    fn unlock(&self) -> Result<(), Error>;

    /// See [`Mutex::inspect`](crate::Mutex::inspect).
    fn inspect(&self) -> Result<LockInfo, Error>;

    /// See [`Mutex::force_unlock`](crate::Mutex::force_unlock).
    fn force_unlock(&self) -> Result<bool, Error>;

    /// See [`Mutex::hold_count`](crate::Mutex::hold_count).
    fn hold_count(&self) -> u32;

    /// See [`Mutex::is_held_by_current_thread`](crate::Mutex::is_held_by_current_thread).
    fn is_held_by_current_thread(&self) -> bool;

    /// See [`Mutex::name`](crate::Mutex::name).
    fn name(&self) -> &LockName;

    derived_verbs!(, LockGuard);
}
