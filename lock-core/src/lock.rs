//! [`DistLock`]: the methods of a lock.

use crate::backend::LockInfo;
use crate::error::Error;
use crate::guard::LockGuard;
use crate::interrupt::Interrupt;
use crate::name::LockName;
use crate::options::LockOptions;
use std::fmt;
use std::time::Duration;

/// Why a wait without a deadline is never busy.
pub(crate) const UNBOUNDED: &str = "a wait without a deadline ends with the lock or an error";

pub(crate) mod sealed {
    use crate::parts::Parts;

    /// Only this crate implements [`DistLock`](crate::DistLock); a new store implements
    /// [`Backend`](crate::Backend).
    pub trait Sealed {
        /// The single locks that it consists of.
        fn parts(&self) -> Parts;
    }
}

/// A lock that threads, processes and machines share.
///
/// It has the methods of Java's `Lock` and Redisson's `RLock`. It is reentrant: the thread that
/// holds it may lock it again, without a request, and each guard ends one hold.
///
/// | Java | here |
/// |---|---|
/// | `lock()` | [`lock()`](Self::lock) |
/// | `lock(lease, unit)` | [`lock_with(&LockOptions::new().lease(l))`](Self::lock_with) |
/// | `lockInterruptibly()` | [`lock_interruptibly(&interrupt)`](Self::lock_interruptibly) |
/// | `lockInterruptibly(lease, unit)` | [`lock_with`](Self::lock_with), lease and interrupt |
/// | `tryLock()` | [`try_lock()`](Self::try_lock) |
/// | `tryLock(wait, unit)` | [`try_lock_for(w)`](Self::try_lock_for) |
/// | `tryLock(wait, lease, unit)` | [`try_lock_with`](Self::try_lock_with), wait and lease |
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
/// The methods that begin with `lock` wait for ever and return a guard. Those that begin with
/// `try_` return `None` if the lock was busy until the end of the wait: that is a result, not an
/// error. An error never means "busy".
///
/// # Errors
///
/// Errors of each method that takes the lock:
/// - [`Error::is_unavailable`]: the store did not answer for the whole wait or, without a deadline,
///   for the outage limit.
/// - [`Error::is_insufficient_replicas`]: it was free, and with `replicas` too few of them
///   confirmed the grant, which was taken back.
/// - [`Error::is_interrupted`]: the interrupt in the options fired.
/// - [`Error::is_lost`]: this thread lost the lock and still has guards of it: drop them first.
/// - [`Error::is_foreign_format`]: the value under the key is not a lock in this wire format.
/// - [`Error::is_configuration`], [`Error::is_misuse`], [`Error::is_unsupported`]: settings or code
///   must be changed.
pub trait DistLock: sealed::Sealed + Send + Sync + fmt::Debug {
    /// Takes the lock with these options; `None` if it was busy until the end of the wait. Without
    /// a wait it waits for ever. All other methods that take the lock call this one.
    ///
    /// # Blocking
    ///
    /// At most for the wait and one command timeout; for several locks, one timeout for each; for a
    /// nested hold that needs a longer lease, and for several permits, two; with `replicas`, two
    /// and the replication timeout. No request is sent while other threads of this client hold the
    /// lock or wait before this one.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn acquire(&self, options: &LockOptions) -> Result<Option<LockGuard>, Error>;

    /// Ends this thread's newest [detached](LockGuard::detach) hold.
    ///
    /// # Blocking
    ///
    /// As [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// [`Error::is_not_held`] (Java's `IllegalMonitorStateException`) if there is none, and those
    /// of [`LockGuard::unlock`].
    fn unlock(&self) -> Result<(), Error>;

    /// Returns the state of the lock in the store. The answer never comes from a replica; with
    /// Sentinel, the sentinels are also asked whether the server that answered is still the master.
    ///
    /// # Blocking
    ///
    /// One request, at most for the command timeout; for several locks one for each, in turn.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    fn inspect(&self) -> Result<LockInfo, Error>;

    /// Releases the lock of any holder, and returns whether it was held.
    ///
    /// For operators: it breaks mutual exclusion. A holder of this library learns of it at its next
    /// renewal, at its next [`LockGuard::verify`], or when it unlocks.
    ///
    /// # Blocking
    ///
    /// One request, at most for the command timeout; for several locks one for each, in turn.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    fn force_unlock(&self) -> Result<bool, Error>;

    /// Returns how many holds this thread has, including detached ones and those of a lost lock.
    /// Sends no request.
    fn hold_count(&self) -> u32;

    /// Returns whether this thread holds the lock and its lease is valid. Sends no request.
    fn is_held_by_current_thread(&self) -> bool;

    /// Returns the name of the lock.
    fn name(&self) -> &LockName;

    /// Waits for the lock. The watchdog renews it until the guard is dropped, unless the settings
    /// have a fixed `lease`.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn lock(&self) -> Result<LockGuard, Error> {
        Ok(self.acquire(&LockOptions::new())?.expect(UNBOUNDED))
    }

    /// Waits for the lock, with the lease, replication and interrupt of the options.
    ///
    /// # Errors
    ///
    /// See [the trait](Self); [`Error::is_misuse`] if the options have a wait.
    fn lock_with(&self, options: &LockOptions) -> Result<LockGuard, Error> {
        Ok(self.acquire(options.without_deadline()?)?.expect(UNBOUNDED))
    }

    /// Waits for the lock until `interrupt` fires.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<LockGuard, Error> {
        self.lock_with(&LockOptions::new().interrupt(interrupt))
    }

    /// Takes the lock if it is free now. It is busy while threads of this client wait for it.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.try_lock_with(&LockOptions::new())
    }

    /// Waits for the lock for at most `wait`.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.try_lock_with(&LockOptions::new().wait(wait))
    }

    /// Waits for the lock for the wait of the options, by default not at all.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn try_lock_with(&self, options: &LockOptions) -> Result<Option<LockGuard>, Error> {
        self.acquire(&options.with_deadline())
    }

    /// Asks the store whether the lock is held.
    ///
    /// # Blocking
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inspect()?.holder.is_some())
    }

    /// Asks the store what is left of the holder's lease: `None` if the lock is free,
    /// [`Duration::MAX`] if the lease has no end. The holder itself may trust
    /// [`LockGuard::remaining`] only.
    ///
    /// # Blocking
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    fn time_to_live(&self) -> Result<Option<Duration>, Error> {
        Ok(self.inspect()?.time_to_live())
    }
}

impl dyn DistLock {
    /// Runs `work` under the lock, and releases it afterwards, also when `work` panics.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](DistLock::lock), before `work` runs, and of [`LockGuard::unlock`], after
    /// it has run: then its result is dropped, because another holder may have entered meanwhile.
    pub fn run<R>(&self, work: impl FnOnce(&LockGuard) -> R) -> Result<R, Error> {
        let guard = self.lock()?;
        let result = work(&guard);
        guard.unlock()?;
        Ok(result)
    }
}
