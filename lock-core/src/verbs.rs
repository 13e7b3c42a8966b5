//! The verbs of the handles and of [`DistLock`], each written once.

use crate::backend::LockInfo;
use crate::error::Error;
use crate::guard::{LockGuard, OwnedGuard};
use crate::interrupt::Interrupt;
use crate::lock::{DistLock, sealed};
use crate::multi::{MajorityLock, MultiLock};
use crate::mutex::{Mutex, OwnedMutex};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::parts::Parts;
use crate::read_write::{ReadLock, WriteLock};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a wait without a deadline is never busy.
pub(crate) const UNBOUNDED: &str = "a wait without a deadline ends with the lock or an error";

macro_rules! run_verb {
    ($guard:ident) => {
        /// Runs `work` under the lock, and releases it afterwards, also when `work` panics.
        ///
        /// # Errors
        ///
        /// Those of [`lock`](Self::lock), before `work` runs, and of the guard's `unlock`, after it
        /// has run: then its result is dropped, because another holder may have entered meanwhile.
        pub fn run<R>(&self, work: impl FnOnce(&$guard) -> R) -> Result<R, Error> {
            let guard = self.lock()?;
            let result = work(&guard);
            guard.unlock()?;
            Ok(result)
        }
    };
}

/// The verbs that follow from `acquire` and `inspect`, for a handle and for the trait.
macro_rules! derived_verbs {
    ($vis:vis, $guard:ident) => {
        /// Waits for the lock. The watchdog renews it until the guard is dropped, unless the
        /// settings have a fixed `lease`.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn lock(&self) -> Result<$guard, Error> {
            self.lock_with(&LockOptions::new())
        }

        /// Waits for the lock, with the lease, replication and interrupt of the options.
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

        /// Takes the lock if it is free now. It is busy while threads of this client wait for it.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn try_lock(&self) -> Result<Option<$guard>, Error> {
            self.try_lock_with(&LockOptions::new())
        }

        /// Takes the lock with these options if it is free now.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        $vis fn try_lock_with(&self, options: &LockOptions) -> Result<Option<$guard>, Error> {
            self.try_lock_for_with(Duration::ZERO, options)
        }

        /// Waits for the lock for at most `wait`. Zero is one attempt.
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

        /// Asks the store whether the lock is held.
        ///
        /// # Blocking
        ///
        /// As [`inspect`](Self::inspect).
        ///
        /// # Errors
        ///
        /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
        $vis fn is_locked(&self) -> Result<bool, Error> {
            Ok(self.inspect()?.holder.is_some())
        }

        /// Asks the store what is left of the holder's lease: `None` if the lock is free,
        /// [`Duration::MAX`] if the lease has no end. The holder itself may trust the
        /// [`remaining`](LockGuard::remaining) of its guard only.
        ///
        /// # Blocking
        ///
        /// As [`inspect`](Self::inspect).
        ///
        /// # Errors
        ///
        /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
        $vis fn time_to_live(&self) -> Result<Option<Duration>, Error> {
            Ok(self.inspect()?.time_to_live())
        }
    };
}
pub(crate) use derived_verbs;

/// The verbs of a handle with this guard, which this method of its inner type returns.
macro_rules! lock_verbs {
    ($guard:ident, $acquire:ident) => {
        /// Takes the lock with these options; `None` if it was busy until the end of the wait.
        /// Without a wait it waits for ever. All other methods that take the lock call this one.
        ///
        /// # Blocking
        ///
        /// At most for the wait and one command timeout; for several locks, one timeout for each;
        /// for a nested hold that needs a longer lease, and for several permits, two; with
        /// `replicas`, two and the replication timeout. No request is sent while other threads of
        /// this client hold the lock or wait before this one.
        ///
        /// # Errors
        ///
        /// See [`DistLock`](crate::DistLock#errors).
        pub fn acquire(
            &self,
            wait: Option<Duration>,
            options: &LockOptions,
        ) -> Result<Option<$guard>, Error> {
            self.0.$acquire(wait, options)
        }

        derived_verbs!(pub, $guard);
        run_verb!($guard);

        /// Returns the state of the lock in the store. The answer never comes from a replica; with
        /// Sentinel, the sentinels are also asked whether the server that answered is still the
        /// master.
        ///
        /// # Blocking
        ///
        /// One request, at most for the command timeout; for several locks one for each, in turn.
        ///
        /// # Errors
        ///
        /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
        pub fn inspect(&self) -> Result<LockInfo, Error> {
            self.0.inspect()
        }

        /// Releases the lock of any holder, and returns whether it was held.
        ///
        /// For operators: it breaks mutual exclusion. A holder of this library learns of it at its
        /// next renewal, at its next [`verify`](LockGuard::verify), or when it unlocks.
        ///
        /// # Blocking
        ///
        /// One request, at most for the command timeout; for several locks one for each, in turn.
        ///
        /// # Errors
        ///
        /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
        pub fn force_unlock(&self) -> Result<bool, Error> {
            self.0.force_unlock()
        }

        /// Returns the name of the lock.
        #[must_use]
        pub fn name(&self) -> &LockName {
            self.0.name()
        }
    };
}

/// Implements a handle of a lock that threads hold.
macro_rules! held_by_threads {
    ($($lock:ident),+) => {$(
        impl $lock {
            lock_verbs!(LockGuard, acquire_here);

            /// Ends this thread's newest [detached](LockGuard::detach) hold.
            ///
            /// # Blocking
            ///
            /// As [`LockGuard::unlock`].
            ///
            /// # Errors
            ///
            /// [`Error::is_not_held`] (Java's `IllegalMonitorStateException`) if there is none, and
            /// those of [`LockGuard::unlock`].
            pub fn unlock(&self) -> Result<(), Error> {
                self.0.unlock_detached()
            }

            /// Returns how many holds this thread has, including detached ones and those of a lost
            /// lock. Sends no request.
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.0.hold_count()
            }

            /// Returns whether this thread holds the lock and its lease is valid. Sends no request.
            #[must_use]
            pub fn is_held_by_current_thread(&self) -> bool {
                self.0.is_held_here()
            }
        }

        impl sealed::Sealed for $lock {
            fn parts(&self) -> Parts {
                self.0.parts()
            }
        }

        // Each calls the method of the handle, which has precedence over that of the trait.
        impl DistLock for $lock {
            fn acquire(
                &self,
                wait: Option<Duration>,
                options: &LockOptions,
            ) -> Result<Option<LockGuard>, Error> {
                $lock::acquire(self, wait, options)
            }

            fn unlock(&self) -> Result<(), Error> {
                $lock::unlock(self)
            }

            fn inspect(&self) -> Result<LockInfo, Error> {
                $lock::inspect(self)
            }

            fn force_unlock(&self) -> Result<bool, Error> {
                $lock::force_unlock(self)
            }

            fn hold_count(&self) -> u32 {
                $lock::hold_count(self)
            }

            fn is_held_by_current_thread(&self) -> bool {
                $lock::is_held_by_current_thread(self)
            }

            fn name(&self) -> &LockName {
                $lock::name(self)
            }
        }

        impl From<$lock> for Arc<dyn DistLock> {
            fn from(lock: $lock) -> Self {
                Arc::new(lock)
            }
        }

        impl From<&$lock> for Arc<dyn DistLock> {
            fn from(lock: &$lock) -> Self {
                Arc::new(lock.clone())
            }
        }
    )+};
}

macro_rules! named {
    ($($lock:ident),+) => {$(
        impl fmt::Debug for $lock {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($lock)).field(self.name()).finish()
            }
        }
    )+};
}

held_by_threads!(Mutex, ReadLock, WriteLock, MultiLock, MajorityLock);
named!(
    Mutex,
    OwnedMutex,
    ReadLock,
    WriteLock,
    MultiLock,
    MajorityLock
);

impl OwnedMutex {
    lock_verbs!(OwnedGuard, acquire_owned);
}

impl dyn DistLock {
    run_verb!(LockGuard);
}
