//! Detached holds: holds without a guard, and the thread that may end each of them.

use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::queue::{LocalLock, Scope};
use crate::name::{LockName, NameMap};
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The detached holds of a client, by lock. Each entry keeps its local lock in memory.
pub(in crate::engine) type DetachedHolds = NameMap<(LockName, Scope), Vec<Detached>>;

fn key_of(lock: &LocalLock) -> (LockName, Scope) {
    (lock.name.clone(), lock.scope)
}

/// A hold without a guard, and the thread that may end it.
pub(in crate::engine) struct Detached {
    thread: u64,
    lock: Arc<LocalLock>,
    pub(in crate::engine) acquisition: Arc<Acquisition>,
    /// The hold on several locks that this hold is a part of.
    whole: Option<CompositeHold>,
}

/// A hold on several locks that was detached as one.
#[derive(Clone, Debug)]
pub(crate) struct CompositeHold {
    /// The set of locks as a text, which is equal for composites of the same locks.
    pub(crate) of: Arc<str>,
    /// The sequence number, larger than that of every composite hold detached before.
    pub(crate) number: u64,
}

impl Engine {
    /// Detaches a hold from its guard, alone or as a part of `whole`. The calling thread may end
    /// the hold later.
    pub(crate) fn detach(
        &self,
        thread: u64,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
        whole: Option<CompositeHold>,
    ) {
        if self.is_forked() {
            return; // A forked child holds no lock.
        }
        let (lock, acquisition) = (Arc::clone(lock), Arc::clone(acquisition));
        let hold = Detached {
            thread,
            lock,
            acquisition,
            whole,
        };
        let mut detached = self.detached.lock();
        let of_lock = detached
            .entry(key_of(&hold.lock))
            .or_insert_with(|| Vec::with_capacity(1));
        of_lock.push(hold);
    }

    /// Removes the detached holds on these acquisitions, whose threads have ended: no other thread
    /// can end these holds.
    pub(in crate::engine) fn drop_detached(
        &self,
        lock: &Arc<LocalLock>,
        acquisitions: &[Arc<Acquisition>],
    ) {
        let is_left = |it: &mut Detached| {
            acquisitions
                .iter()
                .any(|acquisition| Arc::ptr_eq(&it.acquisition, acquisition))
        };
        let mut detached = self.detached.lock();
        let Entry::Occupied(mut of_lock) = detached.entry(key_of(lock)) else {
            return;
        };
        let abandoned: Vec<_> = of_lock.get_mut().extract_if(.., is_left).collect();
        if of_lock.get().is_empty() {
            of_lock.remove();
        }
        drop(detached);
        drop(abandoned); // outside the mutex: dropping a lock locks other mutexes
    }

    /// Removes and returns a detached hold of this thread: the part of the composite hold with the
    /// number `whole`, or if that is `None`, the newest hold that is not a part of a composite.
    /// Must not be called in a forked child.
    pub(crate) fn take_detached(
        &self,
        thread: u64,
        lock: &Arc<LocalLock>,
        whole: Option<u64>,
    ) -> Option<Arc<Acquisition>> {
        let mut detached = self.detached.lock();
        let is_it = |it: &Detached| {
            it.thread == thread && it.whole.as_ref().map(|whole| whole.number) == whole
        };
        let Entry::Occupied(mut of_lock) = detached.entry(key_of(lock)) else {
            return None;
        };
        self.registry.note_visits(of_lock.get().len());
        let at = of_lock.get().iter().rposition(is_it)?;
        let hold = of_lock.get_mut().remove(at);
        if of_lock.get().is_empty() {
            of_lock.remove();
        }
        drop(detached);
        Some(hold.acquisition)
    }

    /// Returns the number of this thread's newest composite hold on the set of locks `of` that
    /// includes `lock`. Must not be called in a forked child.
    pub(crate) fn newest_composite(
        &self,
        thread: u64,
        lock: &Arc<LocalLock>,
        of: &str,
    ) -> Option<u64> {
        let detached = self.detached.lock();
        let ours = detached.get(&key_of(lock)).into_iter().flatten();
        let ours = ours.filter(|it| it.thread == thread);
        let wholes = ours.filter_map(|it| it.whole.as_ref().filter(|whole| *whole.of == *of));
        wholes.map(|whole| whole.number).max()
    }
}
