//! [`TrackedKeys`]: the keys of watched locks, whose changes the server reports.
//!
//! Under `CLIENT TRACKING` the server reports one change, by any client, of a key that this
//! connection has read, and then no longer tracks the key. So the key is read again after each
//! report, by `PTTL`, which makes the server track it again, and shows whether the lock is free.
//! Waiters are woken only if the lock is free, because a renewal is also a change. There are two
//! exceptions: a lock that other clients pass on without messages, for which each report wakes the
//! waiters, and a key that has become unreadable, whose waiters must poll. The key of a semaphore
//! holds the number of its free permits, so the number is read instead.
//!
//! This module has only the state: it does no I/O, and does not wait.

use lock_core::Moment;
use lock_core::backend::Backoff;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The shortest time between two reads of a key, because some locks have a new holder a thousand
/// times a second.
const SPACING: Duration = Duration::from_millis(5);

/// A second change within this time, and no message between, shows that other clients pass the lock
/// on without messages. Then the report of a change wakes the waiters, because the read of the key
/// comes too late to find it free.
const PASSED_ON: Duration = Duration::from_millis(50);
/// The shortest time between two reads of a key whose lock other clients pass on, so that most
/// changes are reported.
const SPACING_IF_PASSED_ON: Duration = Duration::from_millis(2);

/// The delay of the read of a key after a message about its lock, because that message has woken
/// the waiters, and after this delay one of them has the lock. The report of the change may precede
/// the message: Redisson publishes a release after it has deleted the key.
const AFTER_MESSAGE: Duration = Duration::from_millis(20);

/// The first pause before an unreadable key is read again, because a script may block the server.
/// The pause doubles, with jitter.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest pause before an unreadable key is read again, because a waiter may miss a release
/// meanwhile.
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// The delay of the first read of a key for a waiter in a queue, because most grants come sooner,
/// by a message.
const AFTER_FIRST: Duration = Duration::from_millis(5);

/// The number of keys that are read in a second, and the number that are read at once after a quiet
/// time. More are due if the server tracks fewer keys than are watched (`tracking-table-max-keys`):
/// for each key that is read, the server reports a change of another key.
const READS_PER_SECOND: u32 = 1_000;
const READS_AT_ONCE: u32 = 10_000;

/// The time at which a new key is due: with the next work, before subscriptions are sent.
const AT_ONCE: Moment = Moment::from_nanos(0);

/// The keys to read, by the time at which they are due. A key that need no longer be read is
/// removed only at that time.
type DueKeys = BinaryHeap<Reverse<(Moment, Arc<str>)>>;

/// The keys of watched locks.
#[derive(Default)]
pub(super) struct TrackedKeys {
    keys: HashMap<Arc<str>, TrackedKey>,
    due: DueKeys,
    support: TrackingSupport,
    budget: ReadBudget,
}

/// The state of the server's reports on the present connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum TrackingSupport {
    /// There is no connection, or the reports were refused or not requested yet.
    #[default]
    None,
    /// `CLIENT TRACKING` was sent: keys may be read after it.
    Requested,
    Confirmed,
}

struct TrackedKey {
    key: Arc<str>,
    /// The watched channels on which this client is notified of releases. The kinds of locks of one
    /// name may have different channels.
    channels: Vec<Arc<str>>,
    phase: Phase,
    /// True if the key holds the number of a semaphore's free permits.
    has_permits: bool,
    /// True if a waiter needs the reports: the first in the queue, or each if there is no queue.
    is_wanted: bool,
    /// The time of the last read.
    read: Option<Moment>,
    /// The time of the last message about this lock.
    message: Option<Moment>,
    /// The time of the last report.
    reported: Option<Moment>,
    /// True if other clients pass the lock on without messages.
    is_passed_on: bool,
    /// The pauses after failed reads; `None` after a successful one.
    failures: Option<Backoff>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The key is not tracked, and need not be read at the moment.
    Idle,
    /// The key must be read. `is_put_off` is true if a message after the report has delayed the
    /// read. That happens once only, because the message may have woken waiters of another kind of
    /// lock.
    Due { is_put_off: bool },
    /// The read was sent. `changed` is true if a change was reported since.
    Sent { changed: bool },
    /// The server reports the next change.
    Tracked,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyState {
    Free,
    Held,
    /// The server refused the read.
    Unreadable,
}

impl TrackedKeys {
    /// Records that the lock of this key is watched, with its releases on `channel`; `queued` is
    /// the present time if the lock's waiters queue in the store, and otherwise `None`. Returns
    /// whether the key must be read.
    pub(super) fn watch(
        &mut self,
        key: &Arc<str>,
        channel: &Arc<str>,
        queued: Option<Moment>,
    ) -> bool {
        self.add(key, channel).is_wanted = true;
        let entry = self.keys.get_mut(key).expect("it was put in just now");
        let is_idle = entry.phase == Phase::Idle;
        if is_idle {
            entry.schedule(
                queued.map_or(AT_ONCE, |now| now + AFTER_FIRST),
                &mut self.due,
            );
        }
        is_idle
    }

    /// Records whether this key holds the number of a semaphore's free permits, as its latest
    /// waiter says.
    pub(super) fn set_meaning(&mut self, key: &str, has_permits: bool) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.has_permits = has_permits;
        }
    }

    /// Returns whether this key holds the number of a semaphore's free permits.
    pub(super) fn has_permits(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|entry| entry.has_permits)
    }

    /// Records whether a waiter needs reports of this key: the first in its queue does, others do
    /// not. Returns whether the key must be read.
    pub(super) fn track(&mut self, key: &str, is_first: bool, now: Moment) -> bool {
        let Some(entry) = self.keys.get_mut(key) else {
            return false;
        };
        entry.is_wanted = is_first;
        let is_due = is_first && entry.phase == Phase::Idle;
        if is_due {
            entry.schedule(now + AFTER_FIRST, &mut self.due);
        }
        is_due
    }

    fn add(&mut self, key: &Arc<str>, channel: &Arc<str>) -> &mut TrackedKey {
        let entry = self
            .keys
            .entry(Arc::clone(key))
            .or_insert_with(|| TrackedKey {
                key: Arc::clone(key),
                channels: Vec::with_capacity(1),
                phase: Phase::Idle,
                has_permits: false,
                is_wanted: false,
                read: None,
                message: None,
                reported: None,
                is_passed_on: false,
                failures: None,
            });
        if !entry.channels.contains(channel) {
            entry.channels.push(Arc::clone(channel));
        }
        entry
    }

    /// Records that the lock is no longer watched on this channel.
    pub(super) fn forget(&mut self, key: &str, channel: &str) {
        let Some(entry) = self.keys.get_mut(key) else {
            return;
        };
        entry.channels.retain(|it| **it != *channel);
        if entry.channels.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Returns whether waiters of this lock are woken after every release, including that of a
    /// client that publishes none.
    pub(super) fn is_tracked(&self, key: &str) -> bool {
        let is_read = |entry: &TrackedKey| {
            entry.is_wanted && entry.phase != Phase::Idle && entry.failures.is_none()
        };
        let is_in_time = self.support == TrackingSupport::Confirmed && !self.budget.is_used_up;
        is_in_time && self.keys.get(key).is_some_and(is_read)
    }

    /// Sets the state of the server's reports.
    pub(super) fn set_support(&mut self, support: TrackingSupport) {
        self.support = support;
    }

    /// Records that the connection is lost, so that nothing is tracked any more.
    pub(super) fn disconnected(&mut self) {
        self.support = TrackingSupport::None;
        self.due.clear();
        for entry in self.keys.values_mut() {
            entry.failures = None;
            entry.read = None;
            entry.phase = Phase::Idle;
            if entry.is_wanted {
                entry.schedule(AT_ONCE, &mut self.due);
            }
        }
    }

    /// Records a message about the lock of this key.
    pub(super) fn message(&mut self, key: &str, now: Moment) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.message = Some(now);
        }
    }

    /// Records that a key has changed; `is_watched` returns whether a channel has watches. Returns
    /// true if the report certainly belongs to a read on this connection: each read leads to one
    /// report at most.
    pub(super) fn changed(
        &mut self,
        key: &str,
        is_watched: impl Fn(&str) -> bool,
        now: Moment,
    ) -> bool {
        let Some(entry) = self.keys.get_mut(key) else {
            return false;
        };
        entry.changed(is_watched, now, &mut self.due)
    }

    /// Returns the channels whose waiters are woken by the report of a change, without a read.
    pub(super) fn woken_by_report(&self, key: &str) -> &[Arc<str>] {
        let entry = self.keys.get(key).filter(|entry| entry.is_passed_on);
        entry.map_or(&[], |entry| &entry.channels)
    }

    /// Records a report that all keys may have changed, as after `FLUSHALL`.
    pub(super) fn all_changed(&mut self, is_watched: impl Fn(&str) -> bool, now: Moment) {
        for entry in self.keys.values_mut() {
            let _tracked = entry.changed(&is_watched, now, &mut self.due);
        }
    }

    /// Takes the keys to read now, and returns the time at which the next are due. `is_watched`
    /// returns whether a channel has watches: without any, its key need not be read.
    pub(super) fn take_due(
        &mut self,
        is_watched: impl Fn(&str) -> bool,
        now: Moment,
    ) -> (Vec<Arc<str>>, Option<Moment>) {
        let mut reads = Vec::new();
        if self.support == TrackingSupport::None {
            // The next connection makes all wanted keys due again.
            self.due.clear();
            return (reads, None);
        }
        while let Some(Reverse((at, key))) = self.due.pop() {
            if at > now {
                self.due.push(Reverse((at, key)));
                return (reads, Some(at));
            }
            let Some(entry) = self.keys.get_mut(&key) else {
                continue;
            };
            let Phase::Due { is_put_off } = entry.phase else {
                continue;
            };
            // Only the first read of a key on a connection can have this time. No report has caused
            // such a read, so it is not delayed, and not limited.
            if at != AT_ONCE {
                if !(entry.is_wanted && entry.has_watches(&is_watched)) {
                    entry.phase = Phase::Idle;
                    continue;
                }
                let not_before = entry.not_before(at);
                if not_before > now && !is_put_off {
                    entry.phase = Phase::Due { is_put_off: true };
                    self.due.push(Reverse((not_before, key)));
                    continue;
                }
                if !self.budget.take(now) {
                    self.due.push(Reverse((at, key)));
                    return (reads, Some(now + ReadBudget::PAUSE));
                }
            }
            entry.phase = Phase::Sent { changed: false };
            entry.read = Some(now);
            reads.push(key);
        }
        (reads, None)
    }

    /// Returns whether keys are read later than they should be, because too many changes are
    /// reported.
    pub(super) fn is_used_up(&self) -> bool {
        self.budget.is_used_up
    }

    /// Records the reply to a read. Returns the channels whose waiters must be woken.
    pub(super) fn answered(&mut self, key: &Arc<str>, state: KeyState, now: Moment) -> &[Arc<str>] {
        let Some(entry) = self.keys.get_mut(key) else {
            return &[];
        };
        let Phase::Sent { changed } = entry.phase else {
            return &[];
        };
        let was_readable = entry.failures.is_none();
        if state == KeyState::Unreadable {
            let backoff = entry
                .failures
                .get_or_insert(Backoff::new(FIRST_RETRY, LONGEST_RETRY))
                .next();
            entry.schedule(now + backoff, &mut self.due);
        } else if changed {
            entry.failures = None;
            entry.schedule(now, &mut self.due);
        } else {
            entry.failures = None;
            entry.phase = Phase::Tracked;
        }
        // Waiters of a key that has become unreadable must poll from now on.
        let wakes = state == KeyState::Free || (state == KeyState::Unreadable && was_readable);
        if wakes { &entry.channels } else { &[] }
    }
}

impl TrackedKey {
    /// Records a change of the key. Returns true if the report certainly belongs to a read on this
    /// connection.
    fn changed(
        &mut self,
        is_watched: impl Fn(&str) -> bool,
        now: Moment,
        due: &mut DueKeys,
    ) -> bool {
        match self.phase {
            Phase::Tracked if self.is_wanted && self.has_watches(is_watched) => {
                let is_told = |at| self.message.is_some_and(|told| told >= at);
                let is_next = |at: &Moment| now.since(*at) < PASSED_ON && !is_told(*at);
                self.is_passed_on = self.reported.as_ref().is_some_and(is_next);
                self.reported = Some(now);
                self.schedule(now, due);
            }
            Phase::Tracked => self.phase = Phase::Idle,
            Phase::Sent { changed: false } => {
                self.phase = Phase::Sent { changed: true };
                // The server may have executed the read after this change. Then the report belongs
                // to another connection's read.
                return false;
            }
            Phase::Sent { changed: true } | Phase::Idle | Phase::Due { .. } => return false,
        }
        true
    }

    fn has_watches(&self, is_watched: impl Fn(&str) -> bool) -> bool {
        self.channels.iter().any(|channel| is_watched(channel))
    }

    /// Schedules a read of the key at `at`, or later.
    fn schedule(&mut self, at: Moment, due: &mut DueKeys) {
        self.phase = Phase::Due { is_put_off: false };
        due.push(Reverse((self.not_before(at), Arc::clone(&self.key))));
    }

    /// Returns the earliest time for a read that is due at `at`.
    fn not_before(&self, at: Moment) -> Moment {
        let spacing = match self.is_passed_on {
            true => SPACING_IF_PASSED_ON,
            false => SPACING,
        };
        let spaced = self.read.map_or(at, |read| at.max(read + spacing));
        self.message
            .map_or(spaced, |told| spaced.max(told + AFTER_MESSAGE))
    }
}

/// The limit of reads, or of reports that are passed on, and the part of it that is used up.
#[derive(Default)]
pub(super) struct ReadBudget {
    /// The number of reads, less those that have been allowed again up to `since`.
    used: u32,
    since: Option<Moment>,
    is_used_up: bool,
}

impl ReadBudget {
    /// The pause once the limit of reads is used up, so that the next ten reads go together.
    const PAUSE: Duration = Duration::from_millis(10);

    /// Returns whether one more key may be read now, and counts it.
    pub(super) fn take(&mut self, now: Moment) -> bool {
        let since = *self.since.get_or_insert(now);
        let allowed = now.since(since).as_millis() * u128::from(READS_PER_SECOND) / 1_000;
        if allowed > 0 {
            self.used = self
                .used
                .saturating_sub(u32::try_from(allowed).unwrap_or(u32::MAX));
            self.since = Some(now);
        }
        if self.used == 0 {
            self.is_used_up = false;
        }
        let is_left = self.used < READS_AT_ONCE;
        self.used += u32::from(is_left);
        self.is_used_up |= !is_left;
        is_left
    }
}

#[cfg(test)]
mod tests;
