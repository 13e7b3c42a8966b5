//! [`Registry`]: the local locks of a client, by name.

use super::{LocalLock, Sharing};
use crate::name::{LockName, NameMap};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::threads::process::Origin;
use std::slice;
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

/// The names in use: those of which there is a handle, a guard, a timer or a waiter.
///
/// In a forked child there are none: a thread of the parent may have had the mutex at the fork.
pub(crate) struct Registry {
    locks: Mutex<LocksInUse>,
    /// Whether there was ever a lock that is no mutex: quick locks look for none then.
    uses_kinds: AtomicBool,
    origin: Arc<Origin>,
    pub(super) sharing: Sharing,
    /// Random, so that clients do not renew in step.
    pub(super) phase: u64,
    /// How often locks were looked at.
    #[cfg(test)]
    pub(crate) visits: std::sync::atomic::AtomicUsize,
}

/// An index by name: nothing here goes through other names than the one that is asked for, but
/// [`Registry::all`].
#[derive(Default)]
struct LocksInUse {
    /// Those of [`Scope::CLIENT`].
    shared: NameMap<LockName, Weak<LocalLock>>,
    /// Those of threads and guards.
    apart: NameMap<LockName, ApartLocks>,
    /// How many those are.
    apart_count: usize,
}

/// What the threads and guards of this client have of one name.
#[derive(Default)]
struct ApartLocks {
    all: NameMap<Scope, Weak<LocalLock>>,
    /// Those that hold a lock that several holders do not share: one, and such as are lost.
    held: Vec<Weak<LocalLock>>,
}

impl LocksInUse {
    fn find(&self, name: &LockName, scope: Scope) -> Option<&Weak<LocalLock>> {
        match scope {
            Scope::CLIENT => self.shared.get(name),
            scope => self.apart.get(name)?.all.get(&scope),
        }
    }

    fn insert(&mut self, lock: &Arc<LocalLock>) {
        let (name, weak) = (lock.name.clone(), Arc::downgrade(lock));
        if lock.scope == Scope::CLIENT {
            self.shared.insert(name, weak);
            return;
        }
        let former = self
            .apart
            .entry(name)
            .or_default()
            .all
            .insert(lock.scope, weak);
        self.apart_count += usize::from(former.is_none());
    }

    fn remove(&mut self, lock: &LocalLock) {
        if lock.scope == Scope::CLIENT {
            self.shared.remove(&lock.name);
            shrink(&mut self.shared);
            return;
        }
        let Some(apart) = self.apart.get_mut(&lock.name) else {
            return;
        };
        self.apart_count -= usize::from(apart.all.remove(&lock.scope).is_some());
        if apart.all.is_empty() {
            self.apart.remove(&lock.name);
            shrink(&mut self.apart);
        }
    }

    /// See [`Registry::held`].
    fn held(&mut self, lock: &Arc<LocalLock>) {
        if let Some(apart) = self.apart.get_mut(&lock.name) {
            apart.held.push(Arc::downgrade(lock));
        }
    }

    /// See [`Registry::free`].
    fn free(&mut self, lock: &LocalLock) {
        if let Some(apart) = self.apart.get_mut(&lock.name) {
            apart.held.retain(|it| !std::ptr::eq(it.as_ptr(), lock));
        }
    }

    /// Whether this one was not replaced since its last handle was dropped.
    fn has(&self, lock: &LocalLock) -> bool {
        let found = self.find(&lock.name, lock.scope);
        found.is_some_and(|found| std::ptr::eq(found.as_ptr(), lock))
    }
}

/// Below this capacity a map keeps its memory.
const SMALL: usize = 1_024;

/// Frees most of the memory of names that are in use no more. Each time as many were removed as are
/// moved now.
fn shrink<V>(map: &mut NameMap<LockName, V>) {
    if map.capacity() > SMALL && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

impl Registry {
    pub(crate) fn new(origin: Arc<Origin>, sharing: Sharing) -> Self {
        Self {
            locks: Mutex::default(),
            uses_kinds: AtomicBool::new(false),
            origin,
            sharing,
            phase: fastrand::u64(..),
            #[cfg(test)]
            visits: Default::default(),
        }
    }

    /// Counts the locks that are looked at, for a test of what that depends on.
    #[inline]
    pub(in crate::engine) fn note_visits(&self, _count: usize) {
        #[cfg(test)]
        self.visits.fetch_add(_count, Ordering::Relaxed);
    }

    /// The map; `None` in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, LocksInUse>> {
        (!self.origin.is_elsewhere()).then(|| self.locks.lock())
    }

    /// The lock of this name; `None` in a forked child.
    pub(crate) fn get(self: &Arc<Self>, name: &LockName, scope: Scope) -> Option<Arc<LocalLock>> {
        let mut locks = self.lock()?;
        if let Some(lock) = locks.find(name, scope).and_then(Weak::upgrade) {
            return Some(lock);
        }
        if !name.is_plain() {
            self.uses_kinds.store(true, Ordering::Relaxed);
        }
        let lock = Arc::new(LocalLock::new(name.clone(), scope, Arc::clone(self)));
        locks.insert(&lock);
        Some(lock)
    }

    /// The lock of this name, if it is in use.
    pub(crate) fn find(&self, name: &LockName, scope: Scope) -> Option<Arc<LocalLock>> {
        self.lock()?.find(name, scope).and_then(Weak::upgrade)
    }

    /// Whether there was ever a lock that is no mutex.
    pub(crate) fn uses_kinds(&self) -> bool {
        self.uses_kinds.load(Ordering::Relaxed)
    }

    /// Those of this text that one owner holds at a time, of each kind; those of threads and guards
    /// only while they are held.
    pub(crate) fn exclusive(&self, name: &LockName) -> Vec<Arc<LocalLock>> {
        let names: Vec<_> = match self.uses_kinds() {
            true => name.excluding().filter(|it| !it.profile().shared).collect(),
            false => vec![name.plain().into_owned()],
        };
        self.upgraded(|locks| {
            let of_name = |name: &LockName| match name.profile().hands_off {
                true => locks.shared.get(name).map(slice::from_ref),
                false => locks.apart.get(name).map(|apart| &apart.held[..]),
            };
            names.iter().filter_map(of_name).flatten().collect()
        })
    }

    /// Those of this name of all threads and guards.
    pub(crate) fn apart(&self, name: &LockName) -> Vec<Arc<LocalLock>> {
        self.upgraded(|locks| {
            locks
                .apart
                .get(name)
                .into_iter()
                .flat_map(|apart| apart.all.values())
                .collect()
        })
    }

    /// All names in use; none in a forked child.
    pub(crate) fn all(&self) -> Vec<Arc<LocalLock>> {
        self.upgraded(|locks| {
            let apart = locks.apart.values().flat_map(|apart| apart.all.values());
            locks.shared.values().chain(apart).collect()
        })
    }

    fn upgraded(
        &self,
        find: impl FnOnce(&LocksInUse) -> Vec<&Weak<LocalLock>>,
    ) -> Vec<Arc<LocalLock>> {
        let Some(locks) = self.lock() else {
            return Vec::new();
        };
        // All are kept until the lock is free: one that goes takes it.
        let found: Vec<_> = find(&locks).into_iter().filter_map(Weak::upgrade).collect();
        drop(locks);
        self.note_visits(found.len());
        found
    }

    /// How many names are in use.
    pub(crate) fn len(&self) -> usize {
        self.lock()
            .map_or(0, |locks| locks.shared.len() + locks.apart_count)
    }

    /// A thread or guard holds it from now on.
    pub(super) fn held(&self, lock: &Arc<LocalLock>) {
        if lock.is_listed_while_held() {
            self.lock()
                .into_iter()
                .for_each(|mut locks| locks.held(lock));
        }
    }

    /// It is held no more.
    pub(super) fn free(&self, lock: &LocalLock) {
        if lock.is_listed_while_held() {
            self.lock()
                .into_iter()
                .for_each(|mut locks| locks.free(lock));
        }
    }
}

impl LocalLock {
    /// Whether the registry knows while it is held: it would not be found by its name otherwise.
    fn is_listed_while_held(&self) -> bool {
        self.scope != Scope::CLIENT && !self.name.profile().shared
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        let Some(mut locks) = self.registry.lock() else {
            return;
        };
        if self.is_listed_while_held() {
            locks.free(self);
        }
        // Since our last handle was dropped, another thread may have made a new one: that one
        // stays.
        if locks.has(self) {
            locks.remove(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SHARING: Sharing = Sharing {
        hand_off: Duration::ZERO,
        counts_waiters: false,
    };

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
