//! [`TrackedKeys`]: the keys of watched locks, whose changes the server reports.
//!
//! Under `CLIENT TRACKING` the server reports one change of a key that this connection has read,
//! whatever client made it, and tracks the key no longer. So the key is read again after each
//! report, by `PTTL`: that tracks it again, and tells whether the lock is free. Only then waiters
//! are woken, because a renewal is a change, too.
//!
//! Pure state, without I/O and waits.

use lock_core::Moment;
use lock_core::backend::Backoff;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The shortest time between two reads of a key, because some locks change hands a thousand times a
/// second.
const SPACING: Duration = Duration::from_millis(5);

/// The delay of the read of a key after a message about its lock, because the message has woken the
/// waiters, and by then one client has the lock. The report may come first: Redisson frees a lock
/// before it publishes that.
const AFTER_MESSAGE: Duration = Duration::from_millis(20);

/// The first pause before an unreadable key is read again, because a script may block the server.
/// It doubles, with jitter.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest such pause, because a waiter may miss a release meanwhile.
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// How many keys are read in a second, and how many at once after a quiet time. More are due where
/// the server tracks fewer keys than are watched (`tracking-table-max-keys`): for each that is
/// read it reports a change of another.
const READS_PER_SECOND: u32 = 1_000;
const READS_AT_ONCE: u32 = 10_000;

/// A key is due from the beginning: whenever keys are taken next, before subscriptions are sent.
const AT_ONCE: Moment = Moment::from_nanos(0);

/// The keys to read, by when they are due. Those that need not be read any more stay until then.
type DueKeys = BinaryHeap<Reverse<(Moment, Arc<str>)>>;

/// The keys of watched locks.
#[derive(Default)]
pub(super) struct TrackedKeys {
    keys: HashMap<Arc<str>, TrackedKey>,
    due: DueKeys,
    support: TrackingSupport,
    budget: ReadBudget,
}

/// Whether the server reports changes on the present connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum TrackingSupport {
    /// There is no connection, or nothing was asked for yet.
    #[default]
    None,
    /// `CLIENT TRACKING` was sent: keys may be read behind it.
    Requested,
    Confirmed,
}

struct TrackedKey {
    key: Arc<str>,
    /// The watched channels on which releases are published: one for each kind of lock of the name.
    channels: Vec<Arc<str>>,
    phase: Phase,
    /// When it was read last.
    read: Option<Moment>,
    /// When a message about this lock arrived last.
    message: Option<Moment>,
    /// The pauses after failed reads; `None` after a successful one.
    failures: Option<Backoff>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Not tracked, and not watched at the moment.
    Idle,
    /// To be read; whether a message that came behind the report has put that off, which it does
    /// once: it may have woken the waiters of another kind of lock.
    Due { is_put_off: bool },
    /// The read was sent; whether a change was reported since.
    Sent { changed: bool },
    /// The server reports the next change.
    Tracked,
}

/// What a read showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyState {
    Free,
    Held,
    /// The server refused to read it.
    Unreadable,
}

impl TrackedKeys {
    /// The lock of this key is watched, its releases published on `channel`. Whether it must be
    /// read.
    pub(super) fn watch(&mut self, key: &Arc<str>, channel: &Arc<str>) -> bool {
        let entry = self
            .keys
            .entry(Arc::clone(key))
            .or_insert_with(|| TrackedKey {
                key: Arc::clone(key),
                channels: Vec::with_capacity(1),
                phase: Phase::Idle,
                read: None,
                message: None,
                failures: None,
            });
        if !entry.channels.contains(channel) {
            entry.channels.push(Arc::clone(channel));
        }
        let is_idle = entry.phase == Phase::Idle;
        if is_idle {
            entry.schedule(AT_ONCE, &mut self.due);
        }
        is_idle
    }

    /// The lock is no longer watched on this channel.
    pub(super) fn forget(&mut self, key: &str, channel: &str) {
        let Some(entry) = self.keys.get_mut(key) else {
            return;
        };
        entry.channels.retain(|it| **it != *channel);
        if entry.channels.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Whether waiters of this lock are woken after its release, also by a client that publishes
    /// none.
    pub(super) fn is_tracked(&self, key: &str) -> bool {
        let is_read = |entry: &TrackedKey| entry.phase != Phase::Idle && entry.failures.is_none();
        let is_in_time = self.support == TrackingSupport::Confirmed && !self.budget.is_used_up;
        is_in_time && self.keys.get(key).is_some_and(is_read)
    }

    /// The server reports changes, or has been asked to.
    pub(super) fn set_support(&mut self, support: TrackingSupport) {
        self.support = support;
    }

    /// The connection is lost, and with it all that was tracked.
    pub(super) fn disconnected(&mut self) {
        self.support = TrackingSupport::None;
        self.due.clear();
        for entry in self.keys.values_mut() {
            entry.failures = None;
            entry.read = None;
            entry.schedule(AT_ONCE, &mut self.due);
        }
    }

    /// A message about the lock of this key arrived.
    pub(super) fn message(&mut self, key: &str, now: Moment) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.message = Some(now);
        }
    }

    /// A key has changed; `is_watched` says whether a channel has watches. Whether it was tracked
    /// here: each read leads to one report.
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

    /// All keys were deleted.
    pub(super) fn all_changed(&mut self, is_watched: impl Fn(&str) -> bool, now: Moment) {
        for entry in self.keys.values_mut() {
            let _tracked = entry.changed(&is_watched, now, &mut self.due);
        }
    }

    /// Takes the keys to read now; and when the next are due. `is_watched` says whether a channel
    /// has watches: without one nothing need be read.
    pub(super) fn take_due(
        &mut self,
        is_watched: impl Fn(&str) -> bool,
        now: Moment,
    ) -> (Vec<Arc<str>>, Option<Moment>) {
        let mut reads = Vec::new();
        if self.support == TrackingSupport::None {
            // All of them again on the next connection.
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
            // A first read has no report as its cause.
            if at != AT_ONCE {
                if !entry.has_watches(&is_watched) {
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

    /// Whether keys wait for longer than they should, because too many changes were reported.
    pub(super) fn is_used_up(&self) -> bool {
        self.budget.is_used_up
    }

    /// The reply to a read. The channels whose waiters must look for themselves.
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
        // From now on they must look again and again where it cannot be read.
        let wakes = state == KeyState::Free || (state == KeyState::Unreadable && was_readable);
        if wakes { &entry.channels } else { &[] }
    }
}

impl TrackedKey {
    /// It has changed: whether it was tracked here.
    fn changed(
        &mut self,
        is_watched: impl Fn(&str) -> bool,
        now: Moment,
        due: &mut DueKeys,
    ) -> bool {
        match self.phase {
            Phase::Tracked if self.has_watches(is_watched) => {
                self.schedule(now, due);
            }
            Phase::Tracked => self.phase = Phase::Idle,
            Phase::Sent { changed: false } => {
                self.phase = Phase::Sent { changed: true };
                // The read may come behind the change, which another connection reports then.
                return false;
            }
            Phase::Sent { changed: true } | Phase::Idle | Phase::Due { .. } => return false,
        }
        true
    }

    fn has_watches(&self, is_watched: impl Fn(&str) -> bool) -> bool {
        self.channels.iter().any(|channel| is_watched(channel))
    }

    /// Has it read at `at`, or later.
    fn schedule(&mut self, at: Moment, due: &mut DueKeys) {
        self.phase = Phase::Due { is_put_off: false };
        due.push(Reverse((self.not_before(at), Arc::clone(&self.key))));
    }

    /// When it may be read that is due at `at`.
    fn not_before(&self, at: Moment) -> Moment {
        let spaced = self.read.map_or(at, |read| at.max(read + SPACING));
        self.message
            .map_or(spaced, |told| spaced.max(told + AFTER_MESSAGE))
    }
}

/// How many keys may still be read.
#[derive(Default)]
pub(super) struct ReadBudget {
    /// How many were read since `since`, less those that were allowed since.
    used: u32,
    since: Option<Moment>,
    is_used_up: bool,
}

impl ReadBudget {
    /// The pause once the limit of reads is used up, so that the next ten reads go together.
    const PAUSE: Duration = Duration::from_millis(10);

    /// Whether one more may be read now.
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
