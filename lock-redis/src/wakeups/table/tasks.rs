//! [`WorkerTasks`]: the work for the worker, and the wake-ups that follow it.

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

/// The work that is due for the worker.
#[derive(Default)]
pub(in crate::wakeups) struct WorkerTasks {
    pub(in crate::wakeups) closed: bool,
    /// Keys to read, before the subscriptions are sent.
    pub(in crate::wakeups) reads: Vec<Arc<str>>,
    /// Keys of semaphores, whose numbers of free permits must be read before the subscriptions are
    /// sent.
    pub(in crate::wakeups) permit_reads: Vec<Arc<str>>,
    /// The time at which the next key must be read.
    pub(in crate::wakeups) next_read: Option<Moment>,
    /// True if keys are read too late from now on, because more changes are reported than the limit
    /// of reads allows.
    pub(in crate::wakeups) reads_too_late: bool,
    /// The waiters that must poll from now on.
    pub(in crate::wakeups) wakes: DeferredWakeups,
    pub(in crate::wakeups) subscribe: Vec<Subscription>,
    pub(in crate::wakeups) unsubscribe: Vec<Subscription>,
    /// True if there are channels: watched now, or until a moment ago.
    pub(in crate::wakeups) is_watched: bool,
}

/// The wake-ups that follow once the table is unlocked.
#[derive(Default)]
#[must_use = "the waiters sleep on until they are woken"]
pub(in crate::wakeups) struct DeferredWakeups {
    pub(in crate::wakeups) watches: Vec<Arc<dyn Wake>>,
    /// The next owner, if the message names it.
    pub(in crate::wakeups) next: Option<NextOwner>,
    pub(super) confirmations: Vec<Arc<Confirmation>>,
}

impl DeferredWakeups {
    /// Wakes the watchers that await a confirmation. Does not wake `watches`, because that runs
    /// foreign code.
    pub(in crate::wakeups) fn raise_confirmations(&self) {
        for confirmation in &self.confirmations {
            confirmation.signal.raise();
        }
    }
}
