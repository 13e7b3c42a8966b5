//! [`WorkerTasks`]: what the table gives the worker to do, and what is woken afterwards.

use super::Confirmation;
use crate::wakeups::channel::ChannelKind;
use lock_core::Moment;
use lock_core::backend::{NextOwner, Wake};
use std::sync::Arc;

/// A subscription to request from the server, or to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::wakeups) struct Subscription {
    pub(in crate::wakeups) channel: Arc<str>,
    pub(in crate::wakeups) number: u64,
    pub(in crate::wakeups) kind: ChannelKind,
}

/// What the worker has to do next.
#[derive(Default)]
pub(in crate::wakeups) struct WorkerTasks {
    pub(in crate::wakeups) closed: bool,
    /// Keys to read, before the subscriptions are sent.
    pub(in crate::wakeups) reads: Vec<Arc<str>>,
    /// When the next key is due.
    pub(in crate::wakeups) next_read: Option<Moment>,
    /// Whether more changes are reported than keys may be read.
    pub(in crate::wakeups) reads_too_late: bool,
    /// Those that must look for themselves from now on.
    pub(in crate::wakeups) wakes: DeferredWakeups,
    pub(in crate::wakeups) subscribe: Vec<Subscription>,
    pub(in crate::wakeups) unsubscribe: Vec<Subscription>,
    /// Whether there are channels: watched, or until a moment ago.
    pub(in crate::wakeups) is_watched: bool,
}

/// What to wake once the lock of the table is free.
#[derive(Default)]
#[must_use = "the waiters sleep on until they are woken"]
pub(in crate::wakeups) struct DeferredWakeups {
    pub(in crate::wakeups) watches: Vec<Arc<dyn Wake>>,
    /// The owner that is next, where that is told.
    pub(in crate::wakeups) next: Option<NextOwner>,
    pub(super) confirmations: Vec<Arc<Confirmation>>,
}

impl DeferredWakeups {
    /// Wakes those that await a confirmation. Not the watches: that runs foreign code.
    pub(in crate::wakeups) fn raise_confirmations(&self) {
        for confirmation in &self.confirmations {
            confirmation.signal.raise();
        }
    }
}
