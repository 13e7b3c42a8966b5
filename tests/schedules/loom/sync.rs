//! What `crate::sync` is for the one file of lock-core that is compiled here.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Goes through all interleavings of `work`.
pub(crate) fn model(work: impl Fn() + Send + Sync + 'static) {
    loom::model(work);
}

/// `parking_lot::Mutex` over loom's.
#[derive(Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

/// `parking_lot::MutexGuard`; empty only while a condition variable has it.
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

/// `parking_lot::Condvar` over loom's, without time.
#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// Waits until it is notified, however long that takes. Says that time has not run out.
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

/// Time stands still.
pub(crate) mod time {
    pub(crate) fn nanos() -> u64 {
        0
    }
}
