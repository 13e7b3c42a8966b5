//! [`DistLock`]: the verbs of a lock.

use crate::backend::LockInfo;
use crate::error::Error;
use crate::guard::LockGuard;
use crate::interrupt::Interrupt;
use crate::name::LockName;
use crate::options::LockOptions;
use std::fmt;
use std::time::Duration;

pub(crate) mod sealed {
    use crate::multi::Parts;

    /// New kinds of stores implement [`Backend`](crate::Backend); new kinds of locks are made here.
    pub trait Sealed {
        /// What it is made of.
        fn parts(&self) -> Parts;
    }
}

/// A lock that several threads, processes and machines share.
///
/// It mirrors Java's `Lock` and Redisson's `RLock`. It is reentrant: the thread that holds it may
/// lock it again, which costs no request, and each guard ends one hold.
///
/// | Java | here |
/// |---|---|
/// | `lock()` | [`lock()`](Self::lock) |
/// | `lock(lease, unit)` | [`lock_with(&LockOptions::new().lease(l))`](Self::lock_with) |
/// | `lockInterruptibly()` | [`lock_interruptibly(&interrupt)`](Self::lock_interruptibly) |
/// | `lockInterruptibly(lease, unit)` | [`lock_with(&LockOptions::new().lease(l).interrupt(&i))`](Self::lock_with) |
/// | `tryLock()` | [`try_lock()`](Self::try_lock) |
/// | `tryLock(wait, unit)` | [`try_lock_for(w)`](Self::try_lock_for) |
/// | `tryLock(wait, lease, unit)` | [`try_lock_with(&LockOptions::new().wait(w).lease(l))`](Self::try_lock_with) |
/// | `unlock()` | drop the guard, [`LockGuard::unlock`], or [`unlock()`](Self::unlock) after [`LockGuard::detach`] |
/// | `forceUnlock()` | [`force_unlock()`](Self::force_unlock) |
/// | `isLocked()` | [`is_locked()`](Self::is_locked) |
/// | `isHeldByCurrentThread()` | [`is_held_by_current_thread()`](Self::is_held_by_current_thread) |
/// | `isHeldByThread(id)` | none: a thread's own question is the one above, [`inspect()`](Self::inspect) tells the store's holder |
/// | `getHoldCount()` | [`hold_count()`](Self::hold_count) |
/// | `remainTimeToLive()` | [`time_to_live()`](Self::time_to_live) |
/// | `getName()` | [`name()`](Self::name) |
/// | `newCondition()` | none yet; Redisson has none either |
/// | `RedissonClient.getLock(name)` | [`client.mutex(name)`](crate::Client::mutex) |
///
/// The verbs that begin with `lock` wait for ever and return a guard. Those that begin with `try_`
/// return `None` when the lock was busy until the end of the wait: that is an answer, not an error.
/// An error never means "busy", and "could not ask" is never "no".
///
/// # Errors
///
/// Of everything that takes the lock:
/// - [`Error::is_unavailable`]: the store could not be asked: for the whole wait, or, where the
///   wait has no end, for the outage limit.
/// - [`Error::is_interrupted`]: the interrupt in the options fired.
/// - [`Error::is_lost`]: this thread held the lock, lost it, and still has guards of it: drop them
///   first.
/// - [`Error::is_foreign_format`]: something that is not such a lock lives under the name.
/// - [`Error::is_configuration`], [`Error::is_misuse`], [`Error::is_unsupported`]: to be mended in
///   settings or code.
pub trait DistLock: sealed::Sealed + Send + Sync + fmt::Debug {
    /// Takes the lock as `options` say; `None` if it was busy until the end of the wait. Without a
    /// wait in the options it waits for ever. All other verbs that take the lock are made of this
    /// one.
    ///
    /// # Blocking
    ///
    /// At most for the wait and one command time-out more; for a lock of several, one for each of
    /// them, and for a nested hold that needs a longer lease, two. The lock is not asked for again
    /// while others of this client hold it or came before.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn acquire(&self, options: &LockOptions) -> Result<Option<LockGuard>, Error>;

    /// Ends this thread's newest hold that was [detached](LockGuard::detach).
    ///
    /// # Errors
    ///
    /// [`Error::is_not_held`] (Java's `IllegalMonitorStateException`) if there is none, and those
    /// of [`LockGuard::unlock`].
    fn unlock(&self) -> Result<(), Error>;

    /// What the store says of the lock. Never from a replica; with Sentinel, the sentinels are
    /// asked as well whether the server that answered is still the master.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    fn inspect(&self) -> Result<LockInfo, Error>;

    /// Frees the lock, whoever holds it, and says whether anybody did. A holder of this library
    /// learns of it at its next renewal, at its next [`LockGuard::verify`], or when it unlocks. For
    /// operators: it breaks the lock's promise.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    fn force_unlock(&self) -> Result<bool, Error>;

    /// How many holds this thread has, detached ones and those of a lost lock too. Local.
    fn hold_count(&self) -> u32;

    /// Whether this thread holds the lock and may trust it. Local.
    fn is_held_by_current_thread(&self) -> bool;

    /// The name of the lock.
    fn name(&self) -> &LockName;

    /// Waits until the lock is ours. The watchdog keeps it until the guard goes.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn lock(&self) -> Result<LockGuard, Error> {
        self.lock_with(&LockOptions::new())
    }

    /// Waits until the lock is ours, with a lease or an interrupt of its own.
    ///
    /// # Errors
    ///
    /// See [the trait](Self); [`Error::is_misuse`] if there is a wait in the options.
    fn lock_with(&self, options: &LockOptions) -> Result<LockGuard, Error> {
        let guard = self.acquire(options.for_ever()?)?;
        Ok(guard.expect("a wait without an end ends with the lock or an error"))
    }

    /// Waits until the lock is ours or `interrupt` fires.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<LockGuard, Error> {
        self.lock_with(&LockOptions::new().interrupt(interrupt))
    }

    /// Takes the lock if it is free now. Does not overtake threads of this client that wait for it:
    /// then it is busy.
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

    /// Waits for the lock as long as the options say, and not at all if they do not.
    ///
    /// # Errors
    ///
    /// See [the trait](Self).
    fn try_lock_with(&self, options: &LockOptions) -> Result<Option<LockGuard>, Error> {
        self.acquire(&options.for_a_while())
    }

    /// Whether anybody holds the lock, by the store's word.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inspect()?.holder.is_some())
    }

    /// What is left of the holder's lease, by the store's word, which is not what its holder may
    /// trust ([`LockGuard::remaining`]): `None` if nobody holds it, [`Duration::MAX`] if it does
    /// not end by itself.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    fn time_to_live(&self) -> Result<Option<Duration>, Error> {
        Ok(self.inspect()?.holder.map(|holder| holder.remaining.unwrap_or(Duration::MAX)))
    }
}

impl dyn DistLock {
    /// Runs `work` under the lock, and releases it afterwards, also when `work` panics.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](DistLock::lock), before `work` runs, and of [`LockGuard::unlock`], after
    /// it has run: then its result is dropped, because others may have been inside meanwhile.
    pub fn run<R>(&self, work: impl FnOnce(&LockGuard) -> R) -> Result<R, Error> {
        let guard = self.lock()?;
        let result = work(&guard);
        guard.unlock()?;
        Ok(result)
    }
}
