//! [`Holder`]: which thread of this process holds a lock, and whether it still runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The holder of a lock inside this process.
#[derive(Clone, Debug)]
pub(crate) enum Holder {
    /// A thread: it may lock again.
    Thread(ThreadMark),
    /// A guard that no thread owns: not reentrant.
    Guard,
}

impl Holder {
    /// The thread of this number, which must be the current one; without a number, a guard.
    pub(crate) fn of(thread: Option<u64>) -> Self {
        let Some(id) = thread else { return Self::Guard };
        let alive = CURRENT
            .try_with(|thread| Arc::downgrade(&thread.alive))
            .unwrap_or_default();
        Self::Thread(ThreadMark { id, alive })
    }

    /// Whether this is that thread.
    pub(crate) fn is_thread(&self, id: u64) -> bool {
        matches!(self, Self::Thread(mark) if mark.id == id)
    }

    /// Whether it is a thread that has ended: its guards could not leave it, so no guard will
    /// release.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Thread(mark) if mark.alive.strong_count() == 0)
    }
}

/// The identity of a thread of this process, never reused.
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

/// This thread's number; 0 in a thread that is ending, which cannot hold a lock.
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
