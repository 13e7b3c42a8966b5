//! The module `crate::sync` for the one file of lock-core that is compiled here, on top of loom's
//! locks.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Runs `work` in all interleavings.
pub(crate) fn model(work: impl Fn() + Send + Sync + 'static) {
    loom::model(work);
}

/// Stands for `parking_lot::Mutex`, on top of loom's mutex.
#[derive(Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

/// Stands for `parking_lot::MutexGuard`. It is empty only while a condition variable waits with it.
pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("no panic")))
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex(..)")
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is locked")
    }
}

/// Stands for `parking_lot::Condvar`, on top of loom's, without time.
#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// Waits for a notification, however long that takes. Returns that the time has not run out.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _longest: Duration) -> bool {
        self.wait(guard);
        false
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.0.take().expect("it is locked");
        guard.0 = Some(self.0.wait(inner).expect("no panic"));
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A clock that stands still.
pub(crate) mod time {
    pub(crate) fn nanos() -> u64 {
        0
    }
}
