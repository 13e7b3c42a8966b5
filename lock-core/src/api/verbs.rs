//! The methods that the handles of locks have in common, defined by macros and each written once.

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
        /// Acquires the lock, runs `work`, and releases the lock afterwards, even if `work` panics.
        ///
        /// # Errors
        ///
        /// The errors of [`DistLock::lock`], before `work` runs, and the errors of the guard's
        /// `unlock`, after `work` has run. If `unlock` fails, the result of `work` is dropped,
        /// because another holder may have entered while `work` ran.
        pub fn run<R>(&self, work: impl FnOnce(&$guard) -> R) -> Result<R, Error> {
            let guard = self.lock()?;
            let result = work(&guard);
            guard.unlock()?;
            Ok(result)
        }
    };
}

/// Defines the methods of a handle whose guards have the type `$guard`. `$acquire` is the method of
/// the handle's inner type that acquires the lock.
macro_rules! lock_verbs {
    ($guard:ident, $acquire:ident) => {
        /// Acquires the lock with these options. Returns `None` if the lock was busy until the end
        /// of the wait. If `wait` is `None`, the wait has no time limit. The methods whose names
        /// begin with `lock` or `try_lock` call this one.
        ///
        /// # Blocking
        ///
        /// At most for the wait and the time of the last requests:
        /// - usually one command timeout;
        /// - for several locks, one command timeout for each;
        /// - for several permits, and for a nested hold that needs a longer lease, two command
        ///   timeouts;
        /// - with `replicas`, two command timeouts and the replication timeout (for a nested hold
        ///   that needs a longer lease, twice the replication timeout).
        ///
        /// A mutex or a write lock that is not fair sends no request while another thread of this
        /// client holds the lock or waits before this thread.
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

        /// Returns the state of the lock in the store. The answer never comes from a replica. With
        /// Sentinel, the client also queries the sentinels to check that the server that answered
        /// is still the master.
        ///
        /// # Blocking
        ///
        /// One request, at most for the command timeout; for several locks one request for each, in
        /// turn.
        ///
        /// # Errors
        ///
        /// [`Error::is_unavailable`], [`Error::is_foreign_format`]; [`Error::is_configuration`] if
        /// the store refuses this client.
        pub fn inspect(&self) -> Result<LockInfo, Error> {
            self.0.inspect()
        }

        /// Releases the lock, whichever owner holds it, and returns whether the lock was held. If
        /// the lock is free but waiters are queued for it in the store, removes the first waiter
        /// from the queue, because it may be dead and block the others.
        ///
        /// For operators, because it breaks mutual exclusion. A holder of this library detects the
        /// loss at its next renewal, at its next [`verify`](LockGuard::verify), or when it unlocks.
        ///
        /// # Blocking
        ///
        /// One request, at most for the command timeout; for several locks one request for each, in
        /// turn.
        ///
        /// # Errors
        ///
        /// The errors of [`inspect`](Self::inspect), and [`Error::is_unsupported`] if the store
        /// cannot release the lock of another holder.
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

/// Implements [`DistLock`] and the inherent methods for a handle whose lock is held by threads.
macro_rules! held_by_threads {
    ($($lock:ident),+) => {$(
        impl $lock {
            lock_verbs!(LockGuard, acquire_here);

            /// Ends this thread's newest [detached](LockGuard::detach) hold on this lock. A hold on
            /// several locks that was detached as one is ended only as one.
            ///
            /// # Blocking
            ///
            /// As [`LockGuard::unlock`].
            ///
            /// # Errors
            ///
            /// [`Error::is_not_held`] (Java's `IllegalMonitorStateException`) if this thread has no
            /// detached hold, and the errors of [`LockGuard::unlock`].
            pub fn unlock(&self) -> Result<(), Error> {
                self.0.unlock_detached()
            }

            /// Returns the number of holds of this thread, including detached holds and the holds
            /// of a lost acquisition. Sends no request.
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

        // Each body calls the handle's inherent method and not itself: inherent methods have
        // precedence over the trait's methods.
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
