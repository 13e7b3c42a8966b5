//! [`SubscriptionTable`]: the watches on each channel, and the state of its subscription.
//!
//! This module has only the state: it does no I/O, and does not wait.

mod tasks;
#[cfg(test)]
mod tests;
mod watched_channel;

pub(super) use tasks::{DeferredWakeups, Subscription, WorkerTasks};
pub(super) use watched_channel::Confirmation;

use super::channel::{ChannelKind, ReleaseChannel};
use super::named_owner::NamedOwner;
use super::tracked_keys::{KeyState, TrackedKeys, TrackingSupport};
use super::waker::Waker;
use lock_core::backend::{Failure, Wake};
use lock_core::{Error, Moment};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use watched_channel::{Phase, ReleasesOf, WatchEntry, WatchedChannel};

/// Channels, their watches and their subscriptions.
#[derive(Default)]
pub(super) struct SubscriptionTable {
    channels: HashMap<Arc<str>, WatchedChannel>,
    /// The channels that the worker subscribes to in its next turn.
    wanted: Vec<Arc<str>>,
    /// The channels without watches, each with the time at which its last watch ended. Each is
    /// listed at most once, even if it is watched again meanwhile, so the times are only roughly in
    /// order.
    unused: VecDeque<(Moment, Arc<str>)>,
    /// The number of channels whose subscription the server refuses permanently.
    polled: usize,
    /// The time of the last pass over the polled waiters.
    polled_at: Option<Moment>,
    /// The last number of a watch or a channel, so that no two have the same.
    last_number: u64,
    /// The keys of the locks whose releases the channels publish.
    keys: TrackedKeys,
    /// The reason for which there is no connection; `None` if there is one, or none was needed.
    trouble: Option<Error>,
    /// The time at which the connection was lost, or could not be made although it was needed.
    lost: Option<Moment>,
    /// True if the waiters were already woken for this outage, to poll from now on.
    is_outage_told: bool,
    /// True if a connection is needed even without channels.
    is_needed: bool,
    waker: Option<Waker>,
    /// True if the worker was woken and has not read the table since: it need not be woken again.
    /// Reset by each turn of the worker, before it may sleep.
    woken: bool,
    closed: bool,
}

/// A watch, by its channel and its number.
#[derive(Clone, Debug)]
pub(super) struct WatchId(Arc<str>, u64);

/// The state of a watch's subscription.
pub(super) enum SubscriptionState {
    Live,
    Awaited(Arc<Confirmation>),
}

impl SubscriptionTable {
    /// The time for which a channel stays subscribed after its last watch, because it is often
    /// watched again at once.
    pub(super) const LINGER: Duration = Duration::from_secs(1);
    /// The shortest time between two passes over the polled waiters, because a client may have
    /// thousands.
    const POLL_TICK: Duration = Duration::from_millis(5);
    /// The time without a connection after which waiters begin to poll, because a lost connection
    /// is usually restored sooner.
    const OUTAGE: Duration = Duration::from_secs(3);

    pub(super) fn has_waker(&self) -> bool {
        self.waker.is_some()
    }

    pub(super) fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
        // The first watch may have been added before there was a waker.
        self.woken = false;
        self.wake_thread();
    }

    /// Requests a connection even without channels.
    pub(super) fn want_connection(&mut self) {
        self.is_needed = true;
        self.wake_thread();
    }

    /// Ends the worker.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.wake_thread();
    }

    /// Returns the reason for which there is no connection.
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

    /// Adds a watch to a channel of releases.
    pub(super) fn add_waiter(
        &mut self,
        releases: &ReleaseChannel,
        wake: Arc<dyn Wake>,
        now: Moment,
    ) -> (WatchId, SubscriptionState) {
        let (id, standing) = self.add(releases.kind, &releases.name, wake);
        let channel = self
            .channels
            .get_mut(&id.0)
            .expect("it was found or put in just now");
        let of = channel.releases.get_or_insert_with(|| ReleasesOf {
            key: releases.key.as_deref().map(Arc::from),
            grants: releases.grants.as_deref().map(Arc::from),
            has_ended: false,
            polls: releases.polls,
        });
        if of.key.is_none() {
            // Locks of one name and several kinds may share a channel, and not all kinds use
            // changes of the key.
            of.key = releases.key.as_deref().map(Arc::from);
        }
        if let Some(key) = &of.key
            && self
                .keys
                .watch(key, &id.0, of.grants.is_some().then_some(now))
        {
            self.wake_thread();
        }
        if let Some(key) = &releases.key {
            self.keys.set_meaning(key, releases.has_permits);
        }
        (id, standing)
    }

    /// Adds a watch on a channel, which is subscribed to if necessary.
    pub(super) fn add(
        &mut self,
        kind: ChannelKind,
        channel: &str,
        wake: Arc<dyn Wake>,
    ) -> (WatchId, SubscriptionState) {
        let (id, fresh) = (self.next_number(), self.next_number());
        let name = match self.channels.get_key_value(channel) {
            Some((name, _)) => Arc::clone(name),
            None => {
                let name: Arc<str> = channel.into();
                self.channels
                    .insert(Arc::clone(&name), WatchedChannel::new(fresh, kind));
                self.wanted.push(Arc::clone(&name));
                name
            }
        };
        let entry = self
            .channels
            .get_mut(&name)
            .expect("it was found or put in just now");
        entry.unused_since = None;
        // A polled watch does not wait for a subscription. The worker requests the subscription
        // again from time to time.
        let is_polled = entry.phase == Phase::Refused && entry.is_polled;
        if entry.phase == Phase::Refused && !is_polled {
            entry.phase = Phase::Unsent;
            self.wanted.push(Arc::clone(&name));
        }
        let is_live = entry.phase == Phase::Live;
        let confirmation = (!is_live && !is_polled).then(Arc::<Confirmation>::default);
        entry.watches.push(WatchEntry {
            number: id,
            wake,
            confirmation: confirmation.clone(),
        });
        if !is_live {
            self.wake_thread();
        }
        let standing = confirmation.map_or(SubscriptionState::Live, SubscriptionState::Awaited);
        (WatchId(name, id), standing)
    }

    /// Records that a new watch may have missed messages. If the confirmation of its channel is
    /// still to come, the confirmation wakes all watches on the channel.
    pub(super) fn missed(&mut self, id: &WatchId) {
        if let Some(channel) = self.channels.get_mut(&id.0) {
            channel.missed |= channel.phase != Phase::Live;
        }
    }

    /// Removes a watch, and returns its [`Wake`], which must be dropped while no mutex is held.
    ///
    /// Does not wake the worker, whose turns are at most [`Self::LINGER`] apart while there are
    /// channels.
    pub(super) fn remove(&mut self, id: &WatchId, now: Moment) -> Option<Arc<dyn Wake>> {
        let channel = self.channels.get_mut(&id.0)?;
        let at = channel
            .watches
            .iter()
            .position(|watching| watching.number == id.1)?;
        let watching = channel.watches.swap_remove(at);
        if channel.watches.is_empty() {
            channel.unused_since = Some(now);
            if !std::mem::replace(&mut channel.is_listed_unused, true) {
                self.unused.push_back((now, Arc::clone(&id.0)));
            }
        }
        Some(watching.wake)
    }

    /// Takes the work that is due for the worker.
    pub(super) fn take_work(&mut self, now: Moment) -> WorkerTasks {
        self.woken = false;
        let unsubscribe = self.take_unused(now);
        let was_late = self.keys.is_used_up();
        let (reads, next_read) = self.keys.take_due(Self::watched(&self.channels), now);
        let (permit_reads, reads) = reads
            .into_iter()
            .partition(|key| self.keys.has_permits(key));
        let reads_too_late = self.keys.is_used_up();
        let mut wakes = DeferredWakeups::default();
        if reads_too_late && !was_late {
            // Waiters sleep without polling as long as reads are on time. From now on they must
            // poll.
            wakes.watches = self.all_watchers();
        }
        let mut subscribe = Vec::new();
        for name in std::mem::take(&mut self.wanted) {
            let Some(channel) = self.channels.get_mut(&name) else {
                continue;
            };
            if channel.phase == Phase::Unsent {
                channel.phase = Phase::Sent;
                let (number, kind) = (channel.number, channel.kind);
                subscribe.push(Subscription {
                    channel: name,
                    number,
                    kind,
                });
            }
        }
        let is_watched = !self.channels.is_empty();
        WorkerTasks {
            closed: self.closed,
            reads,
            permit_reads,
            next_read,
            reads_too_late,
            wakes,
            subscribe,
            unsubscribe,
            is_watched,
        }
    }

    /// Removes the channels that had no watch for [`Self::LINGER`]. Returns the subscriptions to
    /// end.
    fn take_unused(&mut self, now: Moment) -> Vec<Subscription> {
        let mut ended = Vec::new();
        while let Some((since, _)) = self.unused.front() {
            if now.since(*since) < Self::LINGER {
                break;
            }
            let Some((_, name)) = self.unused.pop_front() else {
                break;
            };
            let Some(channel) = self.channels.get_mut(&name) else {
                continue;
            };
            match channel.unused_since {
                None => channel.is_listed_unused = false,
                // The channel was watched meanwhile.
                Some(since) if now.since(since) < Self::LINGER => {
                    self.unused.push_back((since, name));
                }
                Some(_) => ended.extend(self.remove_channel(&name)),
            }
        }
        ended
    }

    /// Removes a channel and its key. Returns its subscription, if there is one.
    fn remove_channel(&mut self, name: &Arc<str>) -> Option<Subscription> {
        let channel = self.channels.remove(name)?;
        self.polled -= usize::from(channel.is_polled);
        if let Some(key) = channel.key() {
            self.keys.forget(key, name);
        }
        let WatchedChannel {
            number,
            kind,
            phase,
            ..
        } = channel;
        let is_subscribed = matches!(phase, Phase::Sent | Phase::Live);
        is_subscribed.then(|| Subscription {
            channel: Arc::clone(name),
            number,
            kind,
        })
    }

    /// Returns whether a connection is needed. Removes channels without watches.
    pub(super) fn look_if_wanted(&mut self) -> bool {
        self.woken = false;
        self.drop_unused();
        self.is_needed || !self.channels.is_empty()
    }

    /// Removes channels without watches.
    fn drop_unused(&mut self) {
        for (_, name) in std::mem::take(&mut self.unused) {
            match self.channels.get_mut(&name) {
                Some(channel) if channel.unused_since.is_none() => {
                    channel.is_listed_unused = false;
                }
                Some(_) => drop(self.remove_channel(&name)),
                None => {}
            }
        }
        // Each connection empties this list, but there may be no connection for a long time.
        self.wanted.retain(|name| self.channels.contains_key(name));
    }

    fn all_watchers(&self) -> Vec<Arc<dyn Wake>> {
        self.channels
            .values()
            .flat_map(WatchedChannel::watchers)
            .collect()
    }

    /// Returns whether the worker must end.
    pub(super) fn look_if_closed(&mut self) -> bool {
        self.woken = false;
        self.closed
    }

    /// Records that a connection was made.
    pub(super) fn connected(&mut self) {
        self.trouble = None;
    }

    /// Records that the connection has lasted, so that the outage before it is over.
    pub(super) fn stands(&mut self) {
        self.lost = None;
        self.is_outage_told = false;
    }

    /// Records that the connection is lost: nothing is subscribed any more, and messages are
    /// missed.
    pub(super) fn disconnected(&mut self) {
        self.wanted.clear();
        self.drop_unused();
        self.keys.disconnected();
        for (name, channel) in &mut self.channels {
            channel.phase = Phase::Unsent;
            channel.missed = true;
            self.wanted.push(Arc::clone(name));
        }
    }

    /// Records that the connection was lost, or could not be made. Once there has been no
    /// connection for [`Self::OUTAGE`], returns all waiters, which must poll from then on. Watchers
    /// continue to wait for confirmations until their deadlines, unless the server refuses this
    /// client.
    pub(super) fn failed(&mut self, failure: &Failure, now: Moment) -> DeferredWakeups {
        self.trouble = Some(failure.error().clone());
        let mut wakes = DeferredWakeups::default();
        let since = *self.lost.get_or_insert(now);
        if !self.is_outage_told && now.since(since) >= Self::OUTAGE {
            // The waiters relied on being woken. From now on they poll.
            self.is_outage_told = true;
            wakes.watches = self.all_watchers();
        }
        if matches!(failure, Failure::Refused(_)) {
            for channel in self.channels.values_mut() {
                wakes
                    .confirmations
                    .extend(channel.settle(&Err(failure.clone())));
            }
        }
        wakes
    }

    /// Records that the server has confirmed a subscription.
    pub(super) fn confirmed(&mut self, subscription: &Subscription) -> DeferredWakeups {
        let Some(channel) = self.find(subscription) else {
            return DeferredWakeups::default();
        };
        channel.phase = Phase::Live;
        let was_polled = std::mem::take(&mut channel.is_polled);
        let missed = std::mem::take(&mut channel.missed);
        let watches = if missed {
            channel.watchers()
        } else {
            Vec::new()
        };
        let confirmations = channel.settle(&Ok(()));
        self.polled -= usize::from(was_polled);
        DeferredWakeups {
            watches,
            confirmations,
            next: None,
        }
    }

    /// Records that the server has refused a subscription. Watches that had an earlier subscription
    /// have lost it, and must poll.
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
        DeferredWakeups {
            watches,
            confirmations: channel.settle(&Err(failure.clone())),
            next: None,
        }
    }

    /// Returns whether this is a channel of releases: if the server refuses the subscription, its
    /// waiters can poll.
    pub(super) fn may_be_polled(&mut self, subscription: &Subscription) -> bool {
        self.find(subscription)
            .is_some_and(|channel| channel.releases.is_some())
    }

    /// Records that the server refuses this channel permanently: its waiters are woken from time to
    /// time.
    pub(super) fn poll_instead(&mut self, subscription: &Subscription) -> DeferredWakeups {
        let Some(channel) = self.find(subscription) else {
            return DeferredWakeups::default();
        };
        channel.phase = Phase::Refused;
        let was_polled = std::mem::replace(&mut channel.is_polled, true);
        // If messages may have been missed, all waiters are woken now, because waiters with a
        // tracked key are not woken to poll.
        let missed = std::mem::replace(&mut channel.missed, true);
        let watches = if missed {
            channel.watchers()
        } else {
            Vec::new()
        };
        let confirmations = channel.settle(&Ok(()));
        self.polled += usize::from(!was_polled);
        DeferredWakeups {
            watches,
            confirmations,
            next: None,
        }
    }

    /// Returns a watched channel of releases, for a probe.
    pub(super) fn sample(&self) -> Option<(ChannelKind, Arc<str>)> {
        let mut channels = self.channels.iter();
        channels
            .find(|(_, channel)| channel.releases.is_some())
            .map(|(name, channel)| (channel.kind, Arc::clone(name)))
    }

    /// Returns the waiters to wake now, and the time of the next poll. The waiters to wake are
    /// those whose poll is due, and that notice a release neither by a message nor by a report of a
    /// change of the key. `all` is true if releases are not published at all.
    pub(super) fn poll(&mut self, all: bool, now: Moment) -> (DeferredWakeups, Moment) {
        let (mut wakes, mut next) = (DeferredWakeups::default(), Moment::NEVER);
        if !all && self.polled == 0 {
            return (wakes, next);
        }
        let again = self.polled_at.map(|last| last + Self::POLL_TICK);
        if let Some(again) = again.filter(|again| now < *again) {
            return (wakes, again);
        }
        self.polled_at = Some(now);
        for channel in self.channels.values_mut() {
            let is_watched = !channel.watches.is_empty();
            let is_polled = is_watched && (all || channel.is_polled);
            let releases = channel.releases.as_ref().filter(|_| is_polled);
            let Some(of) =
                releases.filter(|of| !of.key.as_ref().is_some_and(|key| self.keys.is_tracked(key)))
            else {
                channel.next_poll = None;
                continue;
            };
            let polls = of.polls;
            if channel.next_poll.is_some_and(|due| due <= now) {
                wakes.watches.extend(channel.watchers());
                channel.next_poll = None;
            }
            next = next.min(*channel.next_poll.get_or_insert_with(|| now + polls.pause()));
        }
        (wakes, next)
    }

    /// Records that the server ended a subscription, because the slot has moved to another node.
    /// Returns the waiters to wake, because they get no more messages here. Later messages on the
    /// channel grant nothing: if this node becomes a replica, it may receive messages about grants
    /// that its master has taken back.
    pub(super) fn ended(&mut self, channel: &str) -> DeferredWakeups {
        let Some(channel) = self.channels.get_mut(channel) else {
            return DeferredWakeups::default();
        };
        if channel.phase != Phase::Live {
            // A new SUBSCRIBE was sent meanwhile: its reply decides.
            return DeferredWakeups::default();
        }
        channel.phase = Phase::Refused;
        channel.missed = true;
        if let Some(releases) = &mut channel.releases {
            releases.has_ended = true;
        }
        DeferredWakeups {
            watches: channel.watchers(),
            ..DeferredWakeups::default()
        }
    }

    /// Requests the refused subscriptions again.
    pub(super) fn retry_refused(&mut self) {
        for (name, channel) in &mut self.channels {
            if channel.phase == Phase::Refused && !channel.watches.is_empty() {
                channel.phase = Phase::Unsent;
                self.wanted.push(Arc::clone(name));
            }
        }
    }

    /// Returns the waiters to wake after a message on `channel`, which may name the next owner.
    pub(super) fn message(
        &mut self,
        channel: &str,
        next: Option<NamedOwner>,
        now: Moment,
    ) -> DeferredWakeups {
        let Some(channel) = self.channels.get(channel) else {
            return DeferredWakeups::default();
        };
        if let Some(key) = channel.key() {
            self.keys.message(key, now);
        }
        // If the lock has no queue, the message names no owner, although another library's message
        // may look as if it did.
        let releases = channel.releases.as_ref();
        let queued = releases.filter(|releases| releases.grants.is_some());
        let next = queued.zip(next).map(|(releases, next)| {
            let grants = releases.grants.as_deref();
            next.of_lock(grants.filter(|_| !releases.has_ended))
        });
        DeferredWakeups {
            watches: channel.watchers(),
            next,
            confirmations: Vec::new(),
        }
    }

    /// Records the state of the server's reports of key changes.
    pub(super) fn set_tracking(&mut self, support: TrackingSupport) {
        self.keys.set_support(support);
    }

    /// Requests reports of changes of this key if the waiter `is_first` in its queue, so that the
    /// lock's waiters are also woken after a release that is not published. For any other waiter,
    /// ends such a request.
    pub(super) fn track(&mut self, key: &str, is_first: bool, now: Moment) {
        if self.keys.track(key, is_first, now) {
            self.wake_thread();
        }
    }

    /// Returns whether waiters of this lock are woken after every release.
    pub(super) fn is_tracked(&self, key: &str) -> bool {
        self.keys.is_tracked(key)
    }

    /// Records the server's report that these keys have changed; `None`: all of them. Returns the
    /// keys that other connections have read, with `None` for all keys, and the waiters to wake.
    pub(super) fn changed(
        &mut self,
        keys: Option<Vec<String>>,
        now: Moment,
    ) -> (Option<Vec<String>>, DeferredWakeups) {
        let is_watched = Self::watched(&self.channels);
        let Some(mut keys) = keys else {
            self.keys.all_changed(&is_watched, now);
            return (None, DeferredWakeups::default());
        };
        let mut watches = Vec::new();
        keys.retain(|key| {
            let is_read_here = self.keys.changed(key, &is_watched, now);
            if is_read_here {
                let names = self.keys.woken_by_report(key);
                watches.append(&mut Self::watchers_of(&self.channels, names));
            }
            !is_read_here
        });
        let wakeups = DeferredWakeups {
            watches,
            ..DeferredWakeups::default()
        };
        (Some(keys), wakeups)
    }

    /// Records the result of a key's read. Returns the waiters to wake: none while the subscription
    /// awaits its confirmation, because they make an attempt after that anyway.
    pub(super) fn read(&mut self, key: &Arc<str>, state: KeyState, now: Moment) -> DeferredWakeups {
        let names = self.keys.answered(key, state, now);
        DeferredWakeups {
            watches: Self::watchers_of(&self.channels, names),
            ..DeferredWakeups::default()
        }
    }

    fn watchers_of(
        channels: &HashMap<Arc<str>, WatchedChannel>,
        names: &[Arc<str>],
    ) -> Vec<Arc<dyn Wake>> {
        let channels = names.iter().filter_map(|name| channels.get(name));
        let channels = channels.filter(|it| matches!(it.phase, Phase::Live | Phase::Refused));
        channels.flat_map(WatchedChannel::watchers).collect()
    }

    fn find(&mut self, subscription: &Subscription) -> Option<&mut WatchedChannel> {
        self.channels
            .get_mut(&subscription.channel)
            .filter(|channel| channel.number == subscription.number)
    }

    /// Returns a function that returns whether a channel has watches.
    fn watched(channels: &HashMap<Arc<str>, WatchedChannel>) -> impl Fn(&str) -> bool {
        |name| {
            channels
                .get(name)
                .is_some_and(|channel| !channel.watches.is_empty())
        }
    }
}
