//! [`WorkerTasks`]: what the table gives the worker to do, and what is woken afterwards.

use super::Confirmation;
use crate::pubsub::channel::ChannelKind;
use lock_core::Moment;
use lock_core::backend::{NextOwner, Wake};
use std::sync::Arc;

/// A subscription to request from the server, or to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::pubsub) struct Subscription {
    pub(in crate::pubsub) channel: Arc<str>,
    pub(in crate::pubsub) number: u64,
    pub(in crate::pubsub) kind: ChannelKind,
}

/// What the worker has to do next.
#[derive(Default)]
pub(in crate::pubsub) struct WorkerTasks {
    pub(in crate::pubsub) closed: bool,
    /// Keys to read, before the subscriptions are sent.
    pub(in crate::pubsub) reads: Vec<Arc<str>>,
    /// When the next key is due.
    pub(in crate::pubsub) next_read: Option<Moment>,
    /// Whether more changes are reported than keys may be read.
    pub(in crate::pubsub) reads_too_late: bool,
    /// Those that must look for themselves from now on.
    pub(in crate::pubsub) wakes: DeferredWakeups,
    pub(in crate::pubsub) subscribe: Vec<Subscription>,
    pub(in crate::pubsub) unsubscribe: Vec<Subscription>,
    /// Whether there are channels: watched, or until a moment ago.
    pub(in crate::pubsub) is_watched: bool,
}

/// What to wake once the lock of the table is free.
#[derive(Default)]
#[must_use = "the waiters sleep on until they are woken"]
pub(in crate::pubsub) struct DeferredWakeups {
    pub(in crate::pubsub) watches: Vec<Arc<dyn Wake>>,
    /// The owner that is next, where that is told.
    pub(in crate::pubsub) next: Option<NextOwner>,
    pub(super) confirmations: Vec<Arc<Confirmation>>,
}

impl DeferredWakeups {
    /// Wakes those that await a confirmation. Not the watches: that runs foreign code.
    pub(in crate::pubsub) fn raise_confirmations(&self) {
        for confirmation in &self.confirmations {
            confirmation.signal.raise();
        }
    }
}
