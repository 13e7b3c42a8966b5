//! [`WatcherSignal`]: wakes the failover watcher, after a sentinel's message or a failed request.

use lock_core::backend::{BackgroundTask, Wake};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The number of queries of the sentinels after a message, because not all sentinels learn of a
/// failover at the same moment.
pub(super) const LOOKS: u32 = 4;

/// The shortest time between an earlier query of the sentinels and the first of the [`LOOKS`]
/// queries after a message, because a failover reaches the other sentinels within a few round
/// trips. Before each further query the time doubles: 50, 100, 200 and 400 ms.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The failover watcher's task, and the reasons to run it.
#[derive(Debug, Default)]
pub(super) struct WatcherSignal {
    pub(super) task: BackgroundTask,
    /// The number of queries that are still due. Set by each message, counted down by the watcher.
    pub(super) looks: AtomicU32,
    /// The number of messages that have named a new master.
    announcements: AtomicU64,
    /// True if a request failed since the last query.
    pub(super) has_failed_request: AtomicBool,
}

impl WatcherSignal {
    /// Records a failed request, and wakes the watcher, which queries the sentinels as soon as the
    /// pause after the last query is over. Does nothing if the watcher has yet to query them for an
    /// earlier failure.
    pub(super) fn report_failure(&self) {
        if !self.has_failed_request.swap(true, Ordering::SeqCst) {
            self.task.wake();
        }
    }

    /// Records a message that names a new master.
    pub(super) fn note_announcement(&self) {
        self.announcements.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of messages that have named a new master.
    pub(super) fn announcements(&self) -> u64 {
        self.announcements.load(Ordering::SeqCst)
    }

    /// Wakes the watcher, which checks if it is still needed, and if work is due.
    pub(super) fn nudge(&self) {
        self.task.wake();
    }
}

/// Called after each message of a sentinel, and after each new subscription, because messages may
/// have been missed.
impl Wake for WatcherSignal {
    fn wake(&self) {
        self.looks.store(LOOKS, Ordering::SeqCst);
        self.task.wake();
    }
}
