//! [`WatcherSignal`]: wakes the failover watcher: a sentinel's news, and requests that failed.

use lock_core::backend::{BackgroundTask, Wake};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The number of queries of the sentinels after news, because not all have received a failover at
/// the same moment.
pub(super) const LOOKS: u32 = 4;

/// The time until the first of these queries, because news reach the other sentinels within a few
/// round trips. Each further one takes twice as long: 50, 100, 200 and 400 ms.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Rouses the watcher.
#[derive(Debug, Default)]
pub(super) struct WatcherSignal {
    pub(super) task: BackgroundTask,
    /// How often the sentinels are to be asked yet. Set by each piece of news, counted down by the
    /// watcher.
    pub(super) looks: AtomicU32,
    /// How many messages have named a new master.
    announcements: AtomicU64,
    /// Whether a request failed since they were asked.
    pub(super) has_failed_request: AtomicBool,
}

impl WatcherSignal {
    /// A request failed: the sentinels are to be asked, when they have not been for a while.
    pub(super) fn report_failure(&self) {
        if !self.has_failed_request.swap(true, Ordering::SeqCst) {
            self.task.wake();
        }
    }

    /// A message has named a new master.
    pub(super) fn note_announcement(&self) {
        self.announcements.fetch_add(1, Ordering::SeqCst);
    }

    /// How many messages have named a new master.
    pub(super) fn announcements(&self) -> u64 {
        self.announcements.load(Ordering::SeqCst)
    }

    /// The watcher shall see whether it is still needed, and whether there is something new to do.
    pub(super) fn nudge(&self) {
        self.task.wake();
    }
}

/// A sentinel's news.
impl Wake for WatcherSignal {
    fn wake(&self) {
        self.looks.store(LOOKS, Ordering::SeqCst);
        self.task.wake();
    }
}
