//! [`SubscriptionTable`]: who watches which channel, and how far the subscription of each is. Plain state; no I/O, no waiting.

use super::ChannelKind;
use super::waker::Waker;
use crate::format::PollInterval;
use lock_core::backend::{Failure, Wake};
use lock_core::{Error, Moment, Signal};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// See the [module's text](self).
#[derive(Default)]
pub(super) struct SubscriptionTable {
    channels: HashMap<Arc<str>, Channel>,
    /// ChannelKind that somebody has asked for since the thread last looked.
    asked_for: Vec<Arc<str>>,
    /// Counts watches and channels alike, so that no two are ever taken for each other.
    last_number: u64,
    /// Why there is no connection; `None` if there is, or nobody has tried.
    trouble: Option<Error>,
    waker: Option<Waker>,
    /// The thread has been woken and has not looked yet: no need to wake it again. Taken down by whatever the thread
    /// looks with, before it may sleep.
    woken: bool,
    closed: bool,
}

struct Channel {
    /// A channel that was left and is wanted again is another one: the confirmation of the first SUBSCRIBE must not be
    /// taken for that of the second, because between them comes an UNSUBSCRIBE.
    number: u64,
    kind: ChannelKind,
    phase: Phase,
    watches: Vec<WatchEntry>,
    /// There was a time without a subscription: when it stands again, everybody must look.
    missed: bool,
    /// Since when nobody watches.
    unused_since: Option<Moment>,
    /// How often those who watch are woken where the server does not tell; nothing where that is a failure.
    polls: Option<PollInterval>,
    /// The server will not tell of this channel.
    deaf: bool,
    /// When they are woken next, while they are not told.
    next_poll: Option<Moment>,
}

struct WatchEntry {
    number: u64,
    wake: Arc<dyn Wake>,
    /// While the watcher waits for the confirmation.
    confirmation: Option<Arc<Confirmation>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nobody has told the server.
    Unsent,
    /// SUBSCRIBE is under way.
    Sent,
    /// The server has confirmed.
    Live,
    /// The server has refused. Asked again from time to time, as long as it is watched.
    Refused,
}

/// One watch: its channel and its number.
#[derive(Clone, Debug)]
pub(super) struct WatchId(Arc<str>, u64);

/// Whether a watch stands, or is yet to be confirmed.
pub(super) enum SubscriptionState {
    Live,
    Awaited(Arc<Confirmation>),
}

/// How a watch that is waiting hears of its outcome.
#[derive(Default)]
pub(super) struct Confirmation {
    pub(super) signal: Arc<Signal>,
    /// Written by the thread before it raises the signal; read by the watcher.
    outcome: Mutex<Option<Result<(), Failure>>>,
}

impl Confirmation {
    pub(super) fn take(&self) -> Option<Result<(), Failure>> {
        self.outcome.lock().take()
    }
}

/// A subscription to ask the server for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Subscription {
    pub(super) channel: Arc<str>,
    pub(super) number: u64,
    pub(super) kind: ChannelKind,
}

/// A subscription to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unsubscription {
    pub(super) channel: Arc<str>,
    pub(super) kind: ChannelKind,
}

/// What the thread has to do next.
#[derive(Default, Debug)]
pub(super) struct WorkerTasks {
    pub(super) closed: bool,
    pub(super) subscribe: Vec<Subscription>,
    pub(super) unsubscribe: Vec<Unsubscription>,
    /// Whether anybody watches anything, or did a moment ago.
    pub(super) is_watched: bool,
}

/// Whom to wake, once the table's lock is free.
#[derive(Default)]
#[must_use = "whoever is in here sleeps on until `wake` is called"]
pub(super) struct DeferredWakeups {
    pub(super) watches: Vec<Arc<dyn Wake>>,
    confirmations: Vec<Arc<Confirmation>>,
}

impl DeferredWakeups {
    /// Tells those who wait for a confirmation. Not those who watch: that runs foreign code.
    pub(super) fn raise_confirmations(&self) {
        for confirmation in &self.confirmations {
            confirmation.signal.raise();
        }
    }
}

impl SubscriptionTable {
    /// How long a channel stays subscribed after its last watch: names are often watched again at once.
    pub(super) const LINGER: Duration = Duration::from_secs(1);

    pub(super) fn has_waker(&self) -> bool {
        self.waker.is_some()
    }

    pub(super) fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
        // It may not have been there when the first ask was written down.
        self.woken = false;
        self.wake_thread();
    }

    /// Ends the thread.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.wake_thread();
    }

    /// Why there is no connection.
    pub(super) fn trouble(&self) -> Option<&Error> {
        self.trouble.as_ref()
    }

    fn wake_thread(&mut self) {
        if let Some(waker) = self.waker.as_ref().filter(|_| !self.woken) {
            self.woken = true;
            waker.wake();
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Writes down a watch.
    pub(super) fn add(
        &mut self,
        kind: ChannelKind,
        channel: &str,
        polls: Option<PollInterval>,
        wake: Arc<dyn Wake>,
    ) -> (WatchId, SubscriptionState) {
        let (id, fresh) = (self.next_number(), self.next_number());
        let name = match self.channels.get_key_value(channel) {
            Some((name, _)) => Arc::clone(name),
            None => {
                let name: Arc<str> = channel.into();
                self.channels.insert(Arc::clone(&name), Channel::new(fresh, kind, polls));
                self.asked_for.push(Arc::clone(&name));
                name
            }
        };
        let entry = self.channels.get_mut(&name).expect("it was found or put in just now");
        entry.unused_since = None;
        if entry.phase == Phase::Refused {
            entry.phase = Phase::Unsent;
            self.asked_for.push(Arc::clone(&name));
        }
        let confirmation = (entry.phase != Phase::Live).then(Arc::<Confirmation>::default);
        entry.watches.push(WatchEntry { number: id, wake, confirmation: confirmation.clone() });
        let standing = match confirmation {
            Some(confirmation) => {
                self.wake_thread();
                SubscriptionState::Awaited(confirmation)
            }
            None => SubscriptionState::Live,
        };
        (WatchId(name, id), standing)
    }

    /// Whoever watches here may have missed messages: it is to be woken when the subscription stands, if it does not yet.
    pub(super) fn missed(&mut self, id: &WatchId) {
        if let Some(channel) = self.channels.get_mut(&id.0) {
            channel.missed |= channel.phase != Phase::Live;
        }
    }

    /// Strikes a watch out, and returns it to be dropped where no lock is held.
    ///
    /// The thread is not woken: it looks at least once in [`SubscriptionTable::LINGER`] while there are channels.
    pub(super) fn remove(&mut self, id: &WatchId, now: Moment) -> Option<Arc<dyn Wake>> {
        let channel = self.channels.get_mut(&id.0)?;
        let at = channel.watches.iter().position(|watching| watching.number == id.1)?;
        let watching = channel.watches.swap_remove(at);
        if channel.watches.is_empty() {
            channel.unused_since = Some(now);
        }
        Some(watching.wake)
    }

    /// Whether a channel is still subscribed that nobody watches.
    pub(super) fn lingers(&self, channel: &str) -> bool {
        let channel = self.channels.get(channel);
        channel.is_some_and(|channel| channel.phase == Phase::Live && channel.watches.is_empty())
    }

    /// What the thread has to do, which it now takes upon itself.
    pub(super) fn take_work(&mut self, now: Moment) -> WorkerTasks {
        self.woken = false;
        let mut unsubscribe = Vec::new();
        self.channels.retain(|name, channel| {
            let over = channel.unused_since.is_some_and(|since| now.since(since) >= Self::LINGER);
            if over && matches!(channel.phase, Phase::Sent | Phase::Live) {
                unsubscribe.push(Unsubscription { channel: Arc::clone(name), kind: channel.kind });
            }
            !over
        });
        let mut subscribe = Vec::new();
        for name in std::mem::take(&mut self.asked_for) {
            let Some(channel) = self.channels.get_mut(&name) else { continue };
            if channel.phase == Phase::Unsent {
                channel.phase = Phase::Sent;
                let (number, kind) = (channel.number, channel.kind);
                subscribe.push(Subscription { channel: name, number, kind });
            }
        }
        let is_watched = !self.channels.is_empty();
        WorkerTasks { closed: self.closed, subscribe, unsubscribe, is_watched }
    }

    /// Whether the thread needs a connection at all. Forgets what nobody watches any more.
    pub(super) fn is_wanted(&mut self) -> bool {
        self.woken = false;
        self.channels.retain(|_, channel| !channel.watches.is_empty());
        !self.channels.is_empty()
    }

    /// Whether the thread has to end.
    pub(super) fn is_closed(&mut self) -> bool {
        self.woken = false;
        self.closed
    }

    /// There is a connection.
    pub(super) fn connected(&mut self) {
        self.trouble = None;
    }

    /// There is no connection any more: nothing is subscribed, and releases are being missed.
    pub(super) fn disconnected(&mut self) {
        self.asked_for.clear();
        self.channels.retain(|_, channel| !channel.watches.is_empty());
        for (name, channel) in &mut self.channels {
            channel.phase = Phase::Unsent;
            channel.missed = true;
            self.asked_for.push(Arc::clone(name));
        }
    }

    /// There was no connection to be had. Who waits for one goes on waiting until its own deadline - unless the server
    /// will not have us whoever asks and however often: then there is nothing to wait for.
    pub(super) fn failed(&mut self, failure: &Failure) -> DeferredWakeups {
        self.trouble = Some(failure.error().clone());
        let mut wakes = DeferredWakeups::default();
        if matches!(failure, Failure::Refused(_)) {
            for channel in self.channels.values_mut() {
                wakes.confirmations.extend(channel.settle(&Err(failure.clone())));
            }
        }
        wakes
    }

    /// The server has confirmed a subscription.
    pub(super) fn confirmed(&mut self, subscription: &Subscription) -> DeferredWakeups {
        let Some(channel) = self.find(subscription) else {
            return DeferredWakeups::default();
        };
        channel.phase = Phase::Live;
        channel.deaf = false;
        let missed = std::mem::take(&mut channel.missed);
        let watches = if missed { channel.watchers() } else { Vec::new() };
        DeferredWakeups { watches, confirmations: channel.settle(&Ok(())) }
    }

    /// The server has refused a subscription. Who watches already had it before: it must look for itself.
    pub(super) fn refused(
        &mut self,
        subscription: &Subscription,
        failure: &Failure,
    ) -> DeferredWakeups {
        let Some(channel) = self.find(subscription) else {
            return DeferredWakeups::default();
        };
        channel.phase = Phase::Refused;
        channel.missed = true;
        let watches = channel.watchers();
        DeferredWakeups { watches, confirmations: channel.settle(&Err(failure.clone())) }
    }

    /// Whether those who watch there are woken from time to time where the server does not tell.
    pub(super) fn is_polled(&mut self, subscription: &Subscription) -> bool {
        self.find(subscription).is_some_and(|channel| channel.polls.is_some())
    }

    /// The server will not tell of this channel: its watchers are woken from time to time instead.
    pub(super) fn untold(&mut self, subscription: &Subscription) -> DeferredWakeups {
        let Some(channel) = self.find(subscription) else {
            return DeferredWakeups::default();
        };
        channel.phase = Phase::Refused;
        channel.missed = true;
        channel.deaf = true;
        DeferredWakeups { watches: Vec::new(), confirmations: channel.settle(&Ok(())) }
    }

    /// A channel on which releases would be told that are watched.
    pub(super) fn sample(&self) -> Option<(ChannelKind, Arc<str>)> {
        let mut channels = self.channels.iter();
        channels
            .find(|(_, channel)| channel.polls.is_some())
            .map(|(name, channel)| (channel.kind, Arc::clone(name)))
    }

    /// The watchers to wake because they are not told, and when to look again. `all`: no release is told on any channel.
    pub(super) fn poll(&mut self, all: bool, now: Moment) -> (DeferredWakeups, Moment) {
        let (mut wakes, mut next) = (DeferredWakeups::default(), Moment::NEVER);
        if !all && !self.channels.values().any(|channel| channel.deaf) {
            return (wakes, next);
        }
        for channel in self.channels.values_mut() {
            let is_watched = !channel.watches.is_empty();
            let Some(polls) = channel.polls.filter(|_| is_watched && (all || channel.deaf)) else {
                channel.next_poll = None;
                continue;
            };
            if channel.next_poll.is_some_and(|due| due <= now) {
                wakes.watches.extend(channel.watchers());
                channel.next_poll = None;
            }
            next = next.min(*channel.next_poll.get_or_insert_with(|| now + polls.pause()));
        }
        (wakes, next)
    }

    /// The server has ended a subscription by itself, because the channel's slot has moved to another node. Who watches
    /// must look for itself, and watch there.
    pub(super) fn ended(&mut self, channel: &str) -> DeferredWakeups {
        let Some(channel) = self.channels.get_mut(channel) else {
            return DeferredWakeups::default();
        };
        if channel.phase != Phase::Live {
            // Asked again meanwhile: the answer to that will tell.
            return DeferredWakeups::default();
        }
        channel.phase = Phase::Refused;
        channel.missed = true;
        DeferredWakeups { watches: channel.watchers(), confirmations: Vec::new() }
    }

    /// Asks again for what the server refused.
    pub(super) fn ask_again(&mut self) {
        for (name, channel) in &mut self.channels {
            if channel.phase == Phase::Refused && !channel.watches.is_empty() {
                channel.phase = Phase::Unsent;
                self.asked_for.push(Arc::clone(name));
            }
        }
    }

    /// Who is to be woken by a message on `channel`.
    pub(super) fn heard(&self, channel: &str) -> DeferredWakeups {
        let watches = self.channels.get(channel).map(Channel::watchers).unwrap_or_default();
        DeferredWakeups { watches, confirmations: Vec::new() }
    }

    fn find(&mut self, subscription: &Subscription) -> Option<&mut Channel> {
        self.channels
            .get_mut(&subscription.channel)
            .filter(|channel| channel.number == subscription.number)
    }
}

impl Channel {
    fn new(number: u64, kind: ChannelKind, polls: Option<PollInterval>) -> Self {
        Self {
            number,
            kind,
            phase: Phase::Unsent,
            watches: Vec::new(),
            missed: false,
            unused_since: None,
            polls,
            deaf: false,
            next_poll: None,
        }
    }

    fn watchers(&self) -> Vec<Arc<dyn Wake>> {
        self.watches.iter().map(|watching| Arc::clone(&watching.wake)).collect()
    }

    /// Writes the outcome on all confirmations and hands them over to be raised.
    fn settle(&mut self, outcome: &Result<(), Failure>) -> Vec<Arc<Confirmation>> {
        let confirmations: Vec<_> =
            self.watches.iter_mut().filter_map(|watching| watching.confirmation.take()).collect();
        for confirmation in &confirmations {
            *confirmation.outcome.lock() = Some(outcome.clone());
        }
        confirmations
    }
}

#[cfg(test)]
mod tests;
