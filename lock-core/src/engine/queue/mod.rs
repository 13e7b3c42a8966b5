//! [`LocalLock`]: the holder and the waiters of one name in this client. For a kind of lock that
//! several owners may hold, or that is granted in the order of arrival over all clients, each
//! thread and each guard has its own `LocalLock` of the name.
//!
//! Only the head of the queue contends in the store, and only while no thread of this client holds
//! the lock. All other threads wait locally, first in, first out. This module sends no request;
//! [`QueueOwner`] is its interface to the engine.

mod handoff;
mod registry;
mod wait_queue;
mod waiter;

use super::acquisition::Acquisition;
use super::timer_wheel::TimerKey;
use crate::backend::Watch;
use crate::backend::replication::Replication;
use crate::engine::holder::Holder;
use crate::error::Error;
use crate::name::{LockName, NameHasher};
use crate::sync::{Mutex, MutexGuard};
use crate::time::lease::LeaseTime;
use crate::time::{Clock, Moment, Signal};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;
use std::time::Duration;
use wait_queue::WaitQueue;

pub(crate) use registry::{Registry, Scope};
pub(crate) use waiter::{Known, Turn, WaiterGuard};

/// The services that a queue needs of its engine.
pub(crate) trait QueueOwner {
    fn clock(&self) -> &dyn Clock;

    fn command_timeout(&self) -> Duration;

    /// Reports that a waiter, which arrived at `since`, received this acquisition by a hand-off.
    fn tell_acquired(&self, acquisition: &Acquisition, since: Moment);

    /// Ends the hold that a hand-off gave to a waiter, if the waiter does not use it, because of an
    /// interrupt or a panic.
    fn decline(&self, lock: &Arc<LocalLock>, acquisition: &Arc<Acquisition>);
}

/// The local lock of one name and scope of a client.
pub(crate) struct LocalLock {
    pub(crate) name: LockName,
    pub(crate) scope: Scope,
    registry: Arc<Registry>,
    state: Mutex<LocalLockState>,
}

/// The divisor of a lease that gives the longest time by which its first renewal is due earlier.
/// The exact time is pseudo-random for each name of a client, so that very many locks that are
/// acquired together are not renewed together.
const SPREAD: u32 = 12;

/// The state of a local lock. Its mutex is never held during a request to the store.
#[derive(Default)]
pub(crate) struct LocalLockState {
    /// The current acquisition, held or being released. While there is one, no thread of this
    /// client sends attempts.
    current: Option<Arc<Acquisition>>,
    queue: WaitQueue,
    /// The time at which the store last answered the head, granted the lock, or received its
    /// release.
    answered: Option<Moment>,
    /// The key of this name's timer in the wheel, and its due time. Written by the
    /// [timer](super::renew).
    pub(crate) timer: Option<(TimerKey, Moment)>,
    /// The time at which the store granted the lock to this client.
    turn_since: Option<Moment>,
    rare: Option<Box<RareState>>,
}

/// State that most locks never need. Boxed to save memory: a client may hold very many.
#[derive(Default)]
struct RareState {
    /// Lost acquisitions whose holds have not all ended yet.
    lost: Vec<Arc<Acquisition>>,
    /// The present outage of the store, recorded by a head and inherited by the next head.
    outage: Option<StoreOutage>,
    /// Signals of waiters past their deadline that wait for the end of the head's request.
    overdue: Vec<Arc<Signal>>,
    /// The subscription to releases. It begins when the store reports the lock as busy, or before
    /// the first attempt if an earlier subscription has just ended, and ends when no thread queues.
    watch: Option<Watch>,
    /// True if the store has reported the lock as busy since the queue was last empty.
    was_busy: bool,
    /// The end of the last watch during which the store reported the lock as busy.
    watch_ended: Option<Moment>,
}

/// The reason why the head cannot acquire the lock, other than that the lock is busy.
#[derive(Clone)]
pub(crate) struct StoreOutage {
    pub(crate) since: Moment,
    pub(crate) error: Error,
    /// The known end of the outage, if it is a [pause](crate::backend::RetryCause::Paused).
    pub(crate) ends: Option<Moment>,
}

/// The request of a waiter: its holder and signal, and the conditions for a hand-off.
#[derive(Clone)]
pub(crate) struct LockRequest {
    pub(crate) holder: Holder,
    pub(crate) signal: Arc<Signal>,
    pub(crate) since: Moment,
    /// The lease that a handed-off acquisition must have; `None` if the waiter accepts no hand-off.
    pub(crate) watched: Option<LeaseTime>,
    /// The replication policy that a handed-off acquisition must have.
    pub(crate) replication: Replication,
}

/// The result of entering the queue.
pub(crate) enum Entered<'a> {
    /// The calling thread holds the lock: a hold was added.
    Nested(Arc<Acquisition>),
    /// Another thread of this client holds the lock or waits for it, and the caller does not wait.
    Busy,
    /// The caller is in the queue.
    Queued(WaiterGuard<'a>),
}

impl LocalLock {
    fn new(name: LockName, scope: Scope, registry: Arc<Registry>) -> Self {
        Self {
            name,
            scope,
            registry,
            state: Mutex::default(),
        }
    }

    /// Returns for how long the lock passes from thread to thread before other clients get a turn.
    fn hand_off_budget(&self) -> Duration {
        match self.scope == Scope::CLIENT {
            true => self.registry.hand_off,
            // The local lock of a single thread or guard has no other thread to hand the lock to:
            // the waiters queue in the store.
            false => Duration::ZERO,
        }
    }

    /// Returns how much earlier the first renewal with this lease is due. This time differs between
    /// names, so that locks acquired together are not renewed together. It is constant for a name,
    /// so that the timer of a lock that is acquired repeatedly need not be moved.
    ///
    /// Zero in this crate's own tests, which check times to the millisecond.
    pub(crate) fn earlier(&self, lease: LeaseTime) -> Duration {
        let what = (self.registry.phase, &self.name, self.scope);
        let hash = BuildHasherDefault::<NameHasher>::default().hash_one(what);
        let part = if cfg!(test) { 0 } else { (hash >> 56) as u32 }; // in 1/256
        lease.duration() / SPREAD * part / 256
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LocalLockState> {
        self.registry.note_visits(1);
        self.state.lock()
    }

    /// Reads each of these locks into the processor's cache, before they are locked one after the
    /// other. Plain reads overlap, but locking does not, and of very many locks most are not in the
    /// cache when they are due.
    pub(crate) fn fetch<'a>(locks: impl IntoIterator<Item = &'a Arc<Self>>) {
        for lock in locks {
            std::hint::black_box(lock.state.is_locked());
        }
    }

    /// Adds a hold if `thread` holds the lock. Otherwise queues the caller, unless it does not wait
    /// and another thread of this client holds the lock or waits for it.
    ///
    /// # Errors
    ///
    /// If the thread has [the most holds](crate::engine::acquisition::MOST_HOLDS), or lost the lock
    /// and has not ended all holds of it. Also if the caller does not wait, and an outage of the
    /// store keeps the threads that wait from acquiring the lock.
    pub(crate) fn enter<'a>(
        self: &Arc<Self>,
        owner: &'a dyn QueueOwner,
        thread: Option<u64>,
        will_wait: bool,
        request: impl FnOnce() -> LockRequest,
    ) -> Result<Entered<'a>, Error> {
        let mut state = self.lock();
        if let Some(thread) = thread {
            if let Some(acquisition) = state
                .current
                .as_ref()
                .filter(|it| it.holder.is_thread(thread))
            {
                acquisition.nest()?;
                return Ok(Entered::Nested(Arc::clone(acquisition)));
            }
            if let Some(lost) = state.lost().iter().find(|it| it.holder.is_thread(thread)) {
                return Err(lost.lost_error());
            }
        }
        if !will_wait && (state.current.is_some() || !state.queue.is_empty()) {
            return state.why_not().map_or(Ok(Entered::Busy), Err);
        }
        let request = request();
        let since = request.since;
        let ticket = state.queue.push(request);
        Ok(Entered::Queued(WaiterGuard {
            owner,
            lock: Arc::clone(self),
            ticket,
            since,
        }))
    }

    /// Ends a hold. After the last hold the acquisition stays current until [`Self::released`], so
    /// that no thread of this client sends an attempt before the release.
    pub(crate) fn end_hold(&self, acquisition: &Arc<Acquisition>) {
        let mut state = self.lock();
        if let (0, Some(rare)) = (acquisition.end_hold(), &mut state.rare) {
            rare.lost.retain(|lost| !Arc::ptr_eq(lost, acquisition));
        }
    }

    /// Removes an acquisition whose release was sent. `now` is the time of that, or of the answer.
    /// The head of the queue may then contend.
    pub(crate) fn released(&self, acquisition: &Arc<Acquisition>, now: Moment) {
        let mut state = self.lock();
        if state
            .current
            .take_if(|it| Arc::ptr_eq(it, acquisition))
            .is_some()
        {
            self.registry.free(self);
            // The lock was held until just before `now`. A wait that began at `now` or later must
            // not take this as an answer that the lock is busy.
            state.answered = Some(Moment::from_nanos(now.as_nanos().saturating_sub(1)));
            state.wake_head();
        }
    }

    /// Removes a lost acquisition from `current`, so that other threads may request the lock.
    pub(crate) fn set_lost(&self, state: &mut LocalLockState, acquisition: &Arc<Acquisition>) {
        if let Some(lost) = state.current.take_if(|it| Arc::ptr_eq(it, acquisition)) {
            self.registry.free(self);
            if lost.holds() > 0 && !lost.holder.has_ended() {
                state.rare().lost.push(lost);
            }
            state.wake_head();
        }
    }

    /// Returns how many threads queue, the head included.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    /// Returns the acquisition of this thread, even a lost one, and its hold count.
    pub(crate) fn holds_of(&self, thread: u64) -> Option<(u32, Arc<Acquisition>)> {
        let state = self.lock();
        let mut acquisitions = state.current.iter().chain(state.lost());
        let acquisition = acquisitions.find(|it| it.holder.is_thread(thread))?;
        Some((acquisition.holds(), Arc::clone(acquisition)))
    }
}

impl LocalLockState {
    /// Returns the current acquisition of this client, held or being released.
    pub(crate) fn current(&self) -> Option<&Arc<Acquisition>> {
        self.current.as_ref()
    }

    /// Removes and returns the lost acquisitions of ended threads, because no other thread can end
    /// their holds.
    pub(crate) fn take_abandoned(&mut self) -> Vec<Arc<Acquisition>> {
        let Some(rare) = &mut self.rare else {
            return Vec::new();
        };
        rare.lost
            .extract_if(.., |it| it.holder.has_ended())
            .collect()
    }

    /// Returns the shortest lease of the lost acquisitions whose holds have not ended.
    pub(crate) fn shortest_lost(&self) -> Option<LeaseTime> {
        self.lost().iter().map(|it| it.lock().lease).min()
    }

    /// Returns the reason why no thread of this client can acquire the lock, if there is one. Then
    /// the answer "busy" would be a guess.
    fn why_not(&self) -> Option<Error> {
        self.outage().map(|outage| outage.error.clone())
    }

    fn outage(&self) -> Option<&StoreOutage> {
        self.rare
            .as_ref()?
            .outage
            .as_ref()
            .filter(|_| self.current.is_none())
    }

    fn lost(&self) -> &[Arc<Acquisition>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.lost)
    }

    /// Returns whether the store notifies this client of the name's releases.
    fn is_watched(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.watch.is_some())
    }

    fn rare(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    /// Records that the head's request has ended, and wakes the waiters that are past their
    /// deadline. `answered` is the time of the store's answer, if there was one.
    fn request_ended(&mut self, answered: Option<Moment>) {
        if let Some(head) = self.queue.head_mut() {
            head.asks_until = None;
        }
        self.answered = answered.or(self.answered);
        if let Some(rare) = &mut self.rare {
            rare.overdue.drain(..).for_each(|signal| signal.raise());
        }
    }

    /// Frees the memory that only waiting threads need, if no thread uses it. Called when the timer
    /// checks the lock.
    pub(crate) fn free_unused(&mut self) {
        self.queue.free_unused();
        self.rare.take_if(|rare| {
            let RareState {
                lost,
                outage,
                overdue,
                watch,
                ..
            } = &**rare;
            lost.is_empty() && outage.is_none() && overdue.is_empty() && watch.is_none()
        });
    }

    fn wake_head(&self) {
        if let Some(head) = self.queue.head() {
            head.request.signal.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client may hold very many locks, each with these two values.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn states_of_a_held_lock_are_small() {
        assert!(size_of::<LocalLock>() <= 152);
        assert!(size_of::<Acquisition>() <= 208 + size_of::<crate::observe::metrics::Counted>());
    }
}
