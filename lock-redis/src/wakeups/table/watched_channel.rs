//! [`WatchedChannel`]: one channel, its watches, and the phase of its subscription.

use crate::wakeups::channel::ChannelKind;
use crate::wakeups::poll_interval::PollInterval;
use lock_core::backend::{Failure, Wake};
use lock_core::{Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// A channel with its watches and its subscription.
pub(super) struct WatchedChannel {
    /// A channel that is watched again has a new number: the confirmation of the first SUBSCRIBE
    /// must not be taken for that of the second, since an UNSUBSCRIBE comes between them.
    pub(super) number: u64,
    pub(super) kind: ChannelKind,
    pub(super) phase: Phase,
    pub(super) watches: Vec<WatchEntry>,
    /// Whether messages may have been missed: once subscribed again, all waiters must look.
    pub(super) missed: bool,
    /// Since when there are no watches.
    pub(super) unused_since: Option<Moment>,
    /// Whether the table lists it among those.
    pub(super) is_listed_unused: bool,
    /// For a channel of releases.
    pub(super) releases: Option<ReleasesOf>,
    /// Whether the server refuses to subscribe to this channel for good.
    pub(super) is_polled: bool,
    /// When waiters are woken next, while they are polled.
    pub(super) next_poll: Option<Moment>,
}

/// The lock whose releases are published on a channel.
pub(super) struct ReleasesOf {
    /// `None`: its changes are of no interest.
    pub(super) key: Option<Arc<str>>,
    /// The key of the lock that a message may grant.
    pub(super) grants: Option<Arc<str>>,
    /// How often waiters are woken where the server refuses to subscribe.
    pub(super) polls: PollInterval,
}

pub(super) struct WatchEntry {
    pub(super) number: u64,
    pub(super) wake: Arc<dyn Wake>,
    /// While the watcher waits for it.
    pub(super) confirmation: Option<Arc<Confirmation>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// SUBSCRIBE was not sent.
    Unsent,
    /// SUBSCRIBE was sent.
    Sent,
    /// The server has confirmed.
    Live,
    /// The server has refused. Sent again from time to time while there are watches.
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

    /// The key of the lock, if its changes are of interest.
    pub(super) fn key(&self) -> Option<&str> {
        self.releases.as_ref()?.key.as_deref()
    }

    pub(super) fn watchers(&self) -> Vec<Arc<dyn Wake>> {
        self.watches
            .iter()
            .map(|watching| Arc::clone(&watching.wake))
            .collect()
    }

    /// Writes the outcome to all confirmations, and returns them to be raised.
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

/// How a watcher learns the outcome of its subscription.
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
