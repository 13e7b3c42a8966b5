//! [`Registry`]: the local locks of a client, by name.

use super::{LocalLock, Sharing};
use crate::name::{LockName, NameMap};
use crate::process::Origin;
use crate::sync::mutant;
use crate::sync::{Mutex, MutexGuard};
use std::sync::{Arc, Weak};

/// Which acquisitions of a name a local lock has. One number, as each name in use has it twice: odd
/// for a thread, even for a guard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Scope(u64);

impl Scope {
    /// All of the client: its threads queue here, and the head asks the store.
    pub(crate) const CLIENT: Self = Self(0);

    /// Those of this thread, which asks the store for itself.
    pub(crate) fn thread(id: u64) -> Self {
        Self(2 * id + 1)
    }

    /// The only one of a guard.
    pub(crate) fn guard(number: u64) -> Self {
        Self(2 * number + 2)
    }

    /// Whether it is that of a guard.
    pub(crate) fn is_guard(self) -> bool {
        self != Self::CLIENT && self.0.is_multiple_of(2)
    }
}

type LocksInUse = NameMap<(LockName, Scope), Weak<LocalLock>>;

/// The names in use: those of which there is a handle, a guard, a timer or a waiter.
///
/// In a forked child there are none: a thread of the parent may have had the mutex at the fork.
pub(crate) struct Registry {
    locks: Mutex<LocksInUse>,
    origin: Arc<Origin>,
    pub(super) sharing: Sharing,
    /// Random, so that clients do not renew in step.
    pub(super) phase: u64,
}

impl Registry {
    pub(crate) fn new(origin: Arc<Origin>, sharing: Sharing) -> Self {
        Self { locks: Mutex::default(), origin, sharing, phase: fastrand::u64(..) }
    }

    /// The map; `None` in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, LocksInUse>> {
        (!self.origin.is_elsewhere()).then(|| self.locks.lock())
    }

    /// The lock of this name; `None` in a forked child.
    pub(crate) fn get(self: &Arc<Self>, name: &LockName, scope: Scope) -> Option<Arc<LocalLock>> {
        let mut locks = self.lock()?;
        let key = (name.clone(), scope);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return Some(lock);
        }
        let lock = Arc::new(LocalLock::new(name.clone(), scope, Arc::clone(self)));
        locks.insert(key, Arc::downgrade(&lock));
        Some(lock)
    }

    /// The lock of this name, if it is in use.
    pub(crate) fn find(&self, name: &LockName, scope: Scope) -> Option<Arc<LocalLock>> {
        self.lock()?.get(&(name.clone(), scope)).and_then(Weak::upgrade)
    }

    /// All names in use; none in a forked child.
    pub(crate) fn all(&self) -> Vec<Arc<LocalLock>> {
        let Some(locks) = self.lock() else { return Vec::new() };
        // All are kept until the lock is free: one that goes takes it.
        locks.values().filter_map(Weak::upgrade).collect()
    }

    /// How many names are in use.
    pub(crate) fn len(&self) -> usize {
        self.lock().map_or(0, |locks| locks.len())
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        let Some(mut locks) = self.registry.lock() else { return };
        // Since our last handle was dropped, another thread may have made a new one: that one
        // stays.
        let is_ours = |lock: &Weak<Self>| std::ptr::eq(lock.as_ptr(), self);
        let key = (self.name.clone(), self.scope);
        if locks.get(&key).is_some_and(is_ours) || mutant("late_entry_removes_successor") {
            locks.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SHARING: Sharing = Sharing { hand_off: Duration::ZERO, counts_waiters: false };

    #[test]
    fn local_lock_dropped_late_leaves_its_successor() {
        let registry = Arc::new(Registry::new(Arc::new(Origin::here()), SHARING));
        let name = LockName::new("x").unwrap();
        let late = LocalLock::new(name.clone(), Scope::CLIENT, Arc::clone(&registry));
        let successor = registry.get(&name, Scope::CLIENT).unwrap();
        drop(late);
        let found = registry.find(&name, Scope::CLIENT);
        assert!(found.is_some_and(|found| Arc::ptr_eq(&found, &successor)));
        drop(successor);
        assert_eq!(registry.len(), 0);
    }
}
