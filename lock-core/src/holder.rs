//! [`Holder`]: which thread holds a lock here, and whether it still lives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Who holds a lock inside this process.
#[derive(Clone, Debug)]
pub(crate) enum Holder {
    /// A thread: it may lock again.
    Thread(ThreadMark),
    /// A guard of its own: nobody may lock again on its behalf.
    Own,
}

impl Holder {
    /// This thread, which has this number, or a guard of its own.
    pub(crate) fn of(thread: Option<u64>) -> Self {
        let Some(id) = thread else { return Self::Own };
        let alive = OWN.try_with(|own| Arc::downgrade(&own.alive)).unwrap_or_default();
        Self::Thread(ThreadMark { id, alive })
    }

    /// Whether this is that thread.
    pub(crate) fn is_thread(&self, id: u64) -> bool {
        matches!(self, Self::Thread(mark) if mark.id == id)
    }

    /// Whether it was a thread that has ended since. Its guards cannot have left it, so nobody will
    /// release.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Thread(mark) if mark.alive.strong_count() == 0)
    }
}

/// A thread of this process, told from all others that ever were.
#[derive(Clone, Debug)]
pub(crate) struct ThreadMark {
    id: u64,
    alive: Weak<()>,
}

/// What a thread keeps for as long as it lives.
struct Own {
    id: u64,
    alive: Arc<()>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

crate::sync::thread_local! {
    static OWN: Own = Own { id: NEXT.fetch_add(1, Ordering::Relaxed), alive: Arc::new(()) };
}

/// This thread's number; 0 in a thread that is ending, which holds nothing and gets nothing.
pub(crate) fn thread_id() -> u64 {
    OWN.try_with(|own| own.id).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_itself_and_ends() {
        let this_thread = || Holder::of(Some(thread_id()));
        let here = this_thread();
        let there = std::thread::spawn(this_thread).join().unwrap();
        assert!(here.is_thread(thread_id()) && !there.is_thread(thread_id()));
        assert!(!here.has_ended() && there.has_ended());
        assert!(!Holder::Own.is_thread(thread_id()) && !Holder::Own.has_ended());
    }
}
