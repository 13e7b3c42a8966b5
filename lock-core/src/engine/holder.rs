//! [`Holder`]: the thread or guard that holds a lock in this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The holder of a lock inside this process.
#[derive(Clone, Debug)]
pub(crate) enum Holder {
    /// A thread, which may acquire the lock again.
    Thread(ThreadMark),
    /// A guard that belongs to no thread and is not reentrant.
    Guard,
}

impl Holder {
    /// Makes the holder for the current thread, whose number is `thread`. `None` makes a guard.
    pub(crate) fn of(thread: Option<u64>) -> Self {
        let Some(id) = thread else { return Self::Guard };
        let alive = CURRENT
            .try_with(|thread| Arc::downgrade(&thread.alive))
            .unwrap_or_default();
        Self::Thread(ThreadMark { id, alive })
    }

    /// Returns whether the holder is the thread with this number.
    pub(crate) fn is_thread(&self, id: u64) -> bool {
        matches!(self, Self::Thread(mark) if mark.id == id)
    }

    /// Returns whether the holder is a thread that has ended. Its guards cannot move to another
    /// thread, so no guard will release the lock.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Thread(mark) if mark.alive.strong_count() == 0)
    }
}

/// The identity of a thread of this process. Numbers are never reused.
#[derive(Clone, Debug)]
pub(crate) struct ThreadMark {
    id: u64,
    alive: Weak<()>,
}

/// Thread-local state, dropped when the thread ends.
struct CurrentThread {
    id: u64,
    alive: Arc<()>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl CurrentThread {
    fn new() -> Self {
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            alive: Arc::new(()),
        }
    }
}

crate::sync::thread_local! {
    static CURRENT: CurrentThread = CurrentThread::new();
}

/// Returns the number of this thread; 0 while the thread ends, because it can hold no lock then.
pub(crate) fn thread_id() -> u64 {
    CURRENT.try_with(|thread| thread.id).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_recognises_its_thread_and_its_end() {
        let this_thread = || Holder::of(Some(thread_id()));
        let here = this_thread();
        let there = std::thread::spawn(this_thread).join().unwrap();
        assert!(here.is_thread(thread_id()) && !there.is_thread(thread_id()));
        assert!(!here.has_ended() && there.has_ended());
        assert!(!Holder::Guard.is_thread(thread_id()) && !Holder::Guard.has_ended());
    }
}
