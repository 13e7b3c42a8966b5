//! The methods of the handles, each written once.

use crate::api::guard::{LockGuard, OwnedGuard};
use crate::api::lock::{DistLock, UNBOUNDED, derived_verbs, sealed};
use crate::api::multi::{MajorityLock, MultiLock};
use crate::api::mutex::{Mutex, OwnedMutex};
use crate::api::parts::Parts;
use crate::api::read_write::{ReadLock, WriteLock};
use crate::backend::LockInfo;
use crate::call::interrupt::Interrupt;
use crate::call::options::LockOptions;
use crate::error::Error;
use crate::name::LockName;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

macro_rules! run_verb {
    ($guard:ident) => {
        /// Runs `work` under the lock, and releases it afterwards, even if `work` panics.
        ///
        /// # Errors
        ///
        /// The errors of [`DistLock::lock`], before `work` runs, and of the guard's `unlock`, after
        /// it has run. In the latter case the result is dropped, because another holder may have
        /// entered meanwhile.
        pub fn run<R>(&self, work: impl FnOnce(&$guard) -> R) -> Result<R, Error> {
            let guard = self.lock()?;
            let result = work(&guard);
            guard.unlock()?;
            Ok(result)
        }
    };
}

/// The methods of a handle with this guard type, which `$acquire` of its inner type returns.
macro_rules! lock_verbs {
    ($guard:ident, $acquire:ident) => {
        /// Acquires the lock with these options; `None` if it was busy until the end of the wait.
        /// Without a wait it waits for ever. All other methods that acquire the lock call this one.
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
        /// Sentinel, the sentinels are also queried whether the server that answered is still the
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
        /// For operators: it breaks mutual exclusion. A holder of this library detects the loss at
        /// its next renewal, at its next [`verify`](LockGuard::verify), or when it unlocks.
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

        // Each body calls the handle's inherent method, which has precedence over the trait's.
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
