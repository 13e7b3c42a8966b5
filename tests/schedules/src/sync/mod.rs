//! The module `crate::sync` of the copy of lock-core: shuttle's primitives, with virtual time.
//!
//! The interface is that of `lock-core/src/sync.rs`, as far as the copy needs it. The state of the
//! virtual time is in a thread-local of the OS thread, because shuttle runs all tasks of an
//! execution on one OS thread.

pub mod channel;
pub mod thread;
pub mod time;

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub use shuttle::sync::atomic;
pub use shuttle::thread_local;

/// A hasher with fixed keys, so that a seed always replays the same execution.
pub type RandomState = BuildHasherDefault<DefaultHasher>;
/// A map whose iteration order is the same in every execution.
pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// `parking_lot::Mutex` over shuttle's mutex, which is unfair: after an unlock, the first waiting
/// task that runs locks it.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

/// The guard of a [`Mutex`], as `parking_lot::MutexGuard`.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// `None` only during the waits of a [`Condvar`], which unlock the mutex.
    inner: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// Makes an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex, and waits until it is unlocked.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard {
            mutex: self,
            inner: Some(inner),
        }
    }

    /// Returns `false`. lock-core calls this only to load the mutex into the processor's cache, and
    /// ignores the answer.
    pub fn is_locked(&self) -> bool {
        false
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex(..)")
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("it is locked")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is locked")
    }
}

impl<T: ?Sized> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MutexGuard(..)")
    }
}

/// `parking_lot::Condvar` over shuttle's condition variable, with time-outs on [virtual
/// time](time).
#[derive(Debug, Default)]
pub struct Condvar(Arc<shuttle::sync::Condvar>);

impl Condvar {
    /// Makes a condition variable without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until the condition variable is notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.inner.take().expect("it is locked");
        guard.inner = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until the condition variable is notified or `longest` has passed. Returns whether
    /// `longest` has passed.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, longest: Duration) -> bool {
        if longest.is_zero() {
            guard.inner = None;
            guard.inner = Some(guard.mutex.0.lock().unwrap_or_else(PoisonError::into_inner));
            return true;
        }
        let sleeper = time::Sleeper::new(&self.0, longest);
        self.wait(guard);
        sleeper.is_due()
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
