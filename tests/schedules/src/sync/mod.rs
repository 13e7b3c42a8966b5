//! What `crate::sync` is for the copy of lock-core: shuttle's primitives, with virtual time.
//!
//! The interface is that of `lock-core/src/sync.rs`, as far as this copy needs it.
//! Statics here are per OS thread: shuttle runs all tasks of an execution on one.

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

/// Hashes that are the same in every execution.
pub type RandomState = BuildHasherDefault<DefaultHasher>;
/// A map whose order is the same in every execution.
pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// `parking_lot::Mutex` over shuttle's, which is unfair: the first task that runs takes it.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

/// `parking_lot::MutexGuard`.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// `None` only while a condition variable has it.
    inner: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A mutex that is not locked.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard {
            mutex: self,
            inner: Some(inner),
        }
    }

    /// Used as a hint to the memory only, so the answer does not matter.
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

/// `parking_lot::Condvar` over shuttle's, with time-outs on [virtual time](time).
#[derive(Debug, Default)]
pub struct Condvar(Arc<shuttle::sync::Condvar>);

impl Condvar {
    /// A condition variable that nothing waits on.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until it is notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.inner.take().expect("it is locked");
        guard.inner = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until it is notified or this time has passed; returns whether it has passed.
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
