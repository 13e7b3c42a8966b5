//! [`WatchedChannel`]: one channel, its watches, and the phase of its subscription.

use crate::wakeups::channel::ChannelKind;
use crate::wakeups::poll_interval::PollInterval;
use lock_core::backend::{Failure, Wake};
use lock_core::{Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// A channel with its watches and its subscription.
pub(super) struct WatchedChannel {
    /// The number of this entry: a channel gets a new number each time it is added. An UNSUBSCRIBE
    /// may come between two SUBSCRIBEs; then the confirmation of the first one must not count for
    /// the second.
    pub(super) number: u64,
    pub(super) kind: ChannelKind,
    pub(super) phase: Phase,
    pub(super) watches: Vec<WatchEntry>,
    /// True if messages may have been missed: once subscribed again, all waiters must be woken.
    pub(super) missed: bool,
    /// The time since which there are no watches.
    pub(super) unused_since: Option<Moment>,
    /// True if the table lists this channel among the unused ones.
    pub(super) is_listed_unused: bool,
    /// The lock, if this is a channel of releases.
    pub(super) releases: Option<ReleasesOf>,
    /// True if the server permanently refuses to subscribe to this channel.
    pub(super) is_polled: bool,
    /// The time at which polled waiters are woken next.
    pub(super) next_poll: Option<Moment>,
}

/// The lock whose releases are published on a channel.
pub(super) struct ReleasesOf {
    /// The key of the lock; `None` if its changes are not used.
    pub(super) key: Option<Arc<str>>,
    /// The key of the lock that a message may grant; `None` if messages grant nothing.
    pub(super) grants: Option<Arc<str>>,
    /// True once the server has ended a subscription of this channel. From then on, a message only
    /// names the next owner, and grants nothing.
    pub(super) has_ended: bool,
    /// The interval at which waiters are woken if the server refuses to subscribe, or releases are
    /// not published at all.
    pub(super) polls: PollInterval,
}

pub(super) struct WatchEntry {
    pub(super) number: u64,
    pub(super) wake: Arc<dyn Wake>,
    /// Present while the watcher waits for the confirmation.
    pub(super) confirmation: Option<Arc<Confirmation>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// SUBSCRIBE was not sent.
    Unsent,
    /// SUBSCRIBE was sent.
    Sent,
    /// The server has confirmed the subscription.
    Live,
    /// The server has refused or ended the subscription. SUBSCRIBE is sent again from time to time
    /// while there are watches.
    Refused,
}

impl WatchedChannel {
    pub(super) fn new(number: u64, kind: ChannelKind) -> Self {
        Self {
            number,
            kind,
            phase: Phase::Unsent,
            watches: Vec::new(),
            missed: false,
            unused_since: None,
            is_listed_unused: false,
            releases: None,
            is_polled: false,
            next_poll: None,
        }
    }

    /// Returns the key of the lock, if its changes are used.
    pub(super) fn key(&self) -> Option<&str> {
        self.releases.as_ref()?.key.as_deref()
    }

    pub(super) fn watchers(&self) -> Vec<Arc<dyn Wake>> {
        self.watches
            .iter()
            .map(|watching| Arc::clone(&watching.wake))
            .collect()
    }

    /// Stores the outcome in all confirmations, and returns them: their signals must be raised.
    pub(super) fn settle(&mut self, outcome: &Result<(), Failure>) -> Vec<Arc<Confirmation>> {
        let confirmations: Vec<_> = self
            .watches
            .iter_mut()
            .filter_map(|watching| watching.confirmation.take())
            .collect();
        for confirmation in &confirmations {
            *confirmation.outcome.lock() = Some(outcome.clone());
        }
        confirmations
    }
}

/// The outcome of a subscription, for a watcher that waits for it.
#[derive(Default)]
pub(in crate::wakeups) struct Confirmation {
    pub(in crate::wakeups) signal: Arc<Signal>,
    /// Written by the worker before it raises the signal.
    outcome: Mutex<Option<Result<(), Failure>>>,
}

impl Confirmation {
    pub(in crate::wakeups) fn take(&self) -> Option<Result<(), Failure>> {
        self.outcome.lock().take()
    }
}
