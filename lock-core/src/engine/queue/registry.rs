//! [`Registry`]: the local locks of a client, by name and scope.

use super::LocalLock;
use crate::name::{LockName, NameMap};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::threads::process::Origin;
use std::slice;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The part of a client to which a local lock belongs: the whole client, a thread or a guard. A
/// single number, to save memory: odd for a thread, even for a guard, and 0 for the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Scope(u64);

impl Scope {
    /// The scope of the whole client: its threads queue together, and the head sends the attempts.
    pub(crate) const CLIENT: Self = Self(0);

    /// Returns the scope of a thread, which sends its own attempts.
    pub(crate) fn thread(id: u64) -> Self {
        Self(2 * id + 1)
    }

    /// Returns the scope of a single guard.
    pub(crate) fn guard(number: u64) -> Self {
        Self(2 * number + 2)
    }

    /// Returns whether this is the scope of a guard.
    pub(crate) fn is_guard(self) -> bool {
        self != Self::CLIENT && self.0.is_multiple_of(2)
    }
}

/// The local locks in use: locks with a handle, a guard, a detached hold, a timer or a waiter.
///
/// Acts as if it were empty in a forked child, because a thread of the parent may have held the
/// mutex at the fork.
pub(crate) struct Registry {
    locks: Mutex<LocksInUse>,
    /// True if there ever was a lock that is not a plain mutex. Otherwise plain mutexes skip the
    /// search for other kinds.
    uses_kinds: AtomicBool,
    origin: Arc<Origin>,
    /// The time for which a lock passes from thread to thread before other clients get a turn.
    pub(super) hand_off: Duration,
    /// A random number, so that clients do not renew at equal times.
    pub(super) phase: u64,
    /// The number of local locks that operations have visited, for tests of their cost.
    #[cfg(test)]
    pub(crate) visits: std::sync::atomic::AtomicUsize,
}

/// The index of local locks by name. Only [`Registry::all`] visits other names than the requested
/// one.
#[derive(Default)]
struct LocksInUse {
    /// The locks of [`Scope::CLIENT`].
    shared: NameMap<LockName, Weak<LocalLock>>,
    /// The locks of threads and guards.
    apart: NameMap<LockName, ApartLocks>,
    /// The number of locks in `apart`.
    apart_count: usize,
}

/// The local locks of one name that belong to threads and guards.
#[derive(Default)]
struct ApartLocks {
    all: NameMap<Scope, Weak<LocalLock>>,
    /// The held locks among `all`; none for a kind that several owners may hold. At most one of
    /// them is valid; the others have expired but are not declared lost yet.
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

    /// Returns whether `lock` is still the registered one. A new local lock may have replaced it
    /// after its last handle was dropped.
    fn has(&self, lock: &LocalLock) -> bool {
        let found = self.find(&lock.name, lock.scope);
        found.is_some_and(|found| std::ptr::eq(found.as_ptr(), lock))
    }
}

/// The capacity up to which a map keeps its memory.
const SMALL: usize = 1_024;

/// Frees most of the memory of names that are no longer in use. Fewer entries are moved than were
/// removed before, so removal stays cheap on average.
fn shrink<V>(map: &mut NameMap<LockName, V>) {
    if map.capacity() > SMALL && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

impl Registry {
    pub(crate) fn new(origin: Arc<Origin>, hand_off: Duration) -> Self {
        Self {
            locks: Mutex::default(),
            uses_kinds: AtomicBool::new(false),
            origin,
            hand_off,
            phase: fastrand::u64(..),
            #[cfg(test)]
            visits: Default::default(),
        }
    }

    /// Counts visited locks, for a test of the cost of an operation.
    #[inline]
    pub(in crate::engine) fn note_visits(&self, _count: usize) {
        #[cfg(test)]
        self.visits.fetch_add(_count, Ordering::Relaxed);
    }

    /// Locks the index; `None` in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, LocksInUse>> {
        (!self.origin.is_elsewhere()).then(|| self.locks.lock())
    }

    /// Returns the local lock of this name and scope, and makes one if needed; `None` in a forked
    /// child.
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

    /// Returns the local lock of this name and scope, if it is in use.
    pub(crate) fn find(&self, name: &LockName, scope: Scope) -> Option<Arc<LocalLock>> {
        self.lock()?.find(name, scope).and_then(Weak::upgrade)
    }

    /// Returns whether there ever was a lock that is not a plain mutex.
    pub(crate) fn uses_kinds(&self) -> bool {
        self.uses_kinds.load(Ordering::Relaxed)
    }

    /// Returns the local locks of this name, of each kind that has one owner at a time. The locks
    /// of threads and guards are included only while they are held.
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

    /// Returns the local locks of this name that belong to threads and guards.
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

    /// Returns all locks in use; none in a forked child.
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
        // Collect the strong references under the mutex and drop them after unlocking it: the drop
        // of a local lock locks this mutex.
        let found: Vec<_> = find(&locks).into_iter().filter_map(Weak::upgrade).collect();
        drop(locks);
        self.note_visits(found.len());
        found
    }

    /// Returns how many names are in use, counted once for each scope.
    pub(crate) fn len(&self) -> usize {
        self.lock()
            .map_or(0, |locks| locks.shared.len() + locks.apart_count)
    }

    /// Lists the lock as held by a thread or guard.
    pub(super) fn held(&self, lock: &Arc<LocalLock>) {
        if lock.is_listed_while_held() {
            self.lock()
                .into_iter()
                .for_each(|mut locks| locks.held(lock));
        }
    }

    /// Removes the lock from the list of held ones.
    pub(super) fn free(&self, lock: &LocalLock) {
        if lock.is_listed_while_held() {
            self.lock()
                .into_iter()
                .for_each(|mut locks| locks.free(lock));
        }
    }
}

impl LocalLock {
    /// Returns whether the registry lists the lock while it is held, because a search by name alone
    /// would not find its scope.
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
        // If another thread has registered a new lock since the last handle was dropped, keep the
        // new lock.
        if locks.has(self) {
            locks.remove(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_lock_dropped_late_leaves_its_successor() {
        let registry = Arc::new(Registry::new(Arc::new(Origin::here()), Duration::ZERO));
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
