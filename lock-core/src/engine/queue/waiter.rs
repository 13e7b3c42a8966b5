//! [`WaiterGuard`]: a thread's position in the queue of a name. [`Turn`]: the result of checking
//! whether the thread may contend for the lock.

use super::wait_queue::{Departure, Waiter};
use super::{LocalLock, LocalLockState, LockRequest, QueueOwner, StoreOutage};
use crate::backend::owner::OwnerId;
use crate::backend::{DirectGrant, NextOwner, Wake, Watch};
use crate::engine::acquisition::Acquisition;
use crate::error::Error;
use crate::time::{Moment, Signal};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time after the end of a watch within which a wait begins a new watch before its first
/// attempt. It is half of the time for which backends stay subscribed, so that the watch costs no
/// request unless the subscription has broken meanwhile.
const LATELY: Duration = Duration::from_millis(500);

/// A position in the queue. Dropping it removes the waiter from the queue, and declines a hand-off
/// that was not fetched. If the waiter was the head and the lock has no holder in this client, the
/// drop wakes the next head.
pub(crate) struct WaiterGuard<'a> {
    pub(super) owner: &'a dyn QueueOwner,
    pub(super) lock: Arc<LocalLock>,
    pub(super) ticket: u64,
    pub(super) since: Moment,
}

/// The result of checking whether it is a waiter's turn.
pub(crate) enum Turn {
    /// The waiter is the head, and the local lock has no current acquisition. From now on
    /// notifications of the store wake the waiter.
    Mine,
    /// The lock was handed to the waiter, which has one hold on this acquisition.
    Handed(Arc<Acquisition>),
    /// It is not the waiter's turn yet. Contains the current acquisition of the local lock, if
    /// there is one: when its validity ends, the waiter must check again.
    Wait(Option<Arc<Acquisition>>),
}

/// The state of the lock, as far as a waiter knows it without an attempt of its own.
pub(crate) enum Known {
    /// The lock is held, or was held since the wait began.
    Busy,
    /// No thread of this client can acquire the lock, because of this error.
    Unavailable(Error),
    /// Nothing yet. The head's request is pending or is about to be sent, and its answer is due by
    /// this moment.
    By(Moment),
    /// Nothing since the wait began, and no request is pending: the head sleeps, or this waiter is
    /// the head itself.
    Nothing,
}

impl WaiterGuard<'_> {
    /// Fetches a hand-off to this waiter, or marks the waiter as contending if it is the head of a
    /// lock without a current acquisition. Otherwise returns [`Turn::Wait`].
    pub(crate) fn turn(&self) -> Turn {
        let mut state = self.lock.lock();
        if let Some(acquisition) = state.queue.take_granted(self.ticket) {
            drop(state);
            self.owner.tell_acquired(&acquisition, self.since);
            return Turn::Handed(acquisition);
        }
        if let Some(acquisition) = state.current() {
            return Turn::Wait(Some(Arc::clone(acquisition)));
        }
        let has_followers = state.queue.len() > 1;
        match state.queue.head_mut() {
            Some(head) if head.ticket == self.ticket => {
                if has_followers {
                    // The waiters behind this one wait for the answer to its request: see `known`.
                    let now = self.owner.clock().now();
                    head.asks_until = Some(now + self.owner.command_timeout());
                }
                head.contending = true;
                Turn::Mine
            }
            _ => Turn::Wait(None),
        }
    }

    /// Queues the waiter again, at the front, after the handed-off acquisition was lost.
    pub(crate) fn requeue(&mut self, request: LockRequest) {
        self.ticket = self.lock.lock().queue.push_front(request);
    }

    /// Removes the waiter from the queue. Returns the acquisition if the lock was handed to the
    /// waiter before that.
    pub(crate) fn leave(&self) -> Option<Arc<Acquisition>> {
        let mut state = self.lock.lock();
        let Departure { granted, was_head } = state.queue.remove(self.ticket);
        let mut ended = None;
        if state.queue.is_empty() {
            ended = state.rare.as_mut().and_then(|rare| {
                rare.outage = None;
                let was_busy = std::mem::take(&mut rare.was_busy);
                let watch = rare.watch.take()?;
                if was_busy {
                    rare.watch_ended = Some(self.owner.clock().now());
                }
                Some(watch)
            });
        }
        if was_head {
            state.request_ended(None);
            if state.current.is_none() {
                // A signal that this waiter received may have been meant for the next waiter, so
                // wake the next one.
                state.wake_head();
            }
        }
        drop(state);
        drop(ended);
        if let Some(acquisition) = &granted {
            // Report the acquisition even if it is released at once or was lost, because its end is
            // reported, too.
            self.owner.tell_acquired(acquisition, self.since);
        }
        granted
    }

    /// Records that the head sends a request as `owner`, and that the answer is due at `by`.
    /// Returns whether other waiters are behind the head, and whether the store notifies this
    /// client of the name's releases.
    pub(crate) fn asks(&self, by: Moment, owner: OwnerId) -> (bool, bool) {
        let mut state = self.lock.lock();
        if let Some(head) = state.queue.head_mut() {
            head.asks_until = Some(by);
            head.asks_as = Some(owner);
            head.is_outdated = false;
        }
        (state.queue.len() > 1, state.is_watched())
    }

    /// Returns whether other waiters are behind the head.
    pub(crate) fn has_followers(&self) -> bool {
        self.lock.waiting() > 1
    }

    /// Returns whether this waiter is the head.
    pub(crate) fn is_head(&self) -> bool {
        let state = self.lock.lock();
        state
            .queue
            .head()
            .is_some_and(|head| head.ticket == self.ticket)
    }

    /// Fetches the direct grant by another owner's release, if one arrived since the last call.
    pub(crate) fn take_direct_grant(&self) -> Option<DirectGrant> {
        self.lock.lock().queue.head_mut()?.direct.take()
    }

    /// Records that the store has reported the lock as busy, or a split vote, by `now`.
    pub(crate) fn found_busy(&self, now: Moment) {
        let mut state = self.lock.lock();
        state.rare().was_busy = true;
        state.request_ended(Some(now));
    }

    /// Records that the store has granted the lock to this client, or reported it as busy, by
    /// `now`.
    pub(crate) fn answered(&self, now: Moment) {
        self.lock.lock().request_ended(Some(now));
    }

    /// Returns the callback that wakes the head of this queue.
    pub(crate) fn wake(&self) -> LockWake {
        LockWake(Arc::downgrade(&self.lock))
    }

    /// Returns whether the store notifies this client of the name's releases.
    pub(crate) fn is_watched(&self) -> bool {
        self.lock.lock().is_watched()
    }

    /// Returns whether a watch during which the lock was busy ended less than [`LATELY`] ago, and
    /// no new watch has begun.
    pub(crate) fn was_watched_lately(&self) -> bool {
        let state = self.lock.lock();
        let ended = state.rare.as_ref().filter(|rare| rare.watch.is_none());
        let ended = ended.and_then(|rare| rare.watch_ended);
        ended.is_some_and(|ended| self.owner.clock().now() < ended + LATELY)
    }

    /// Stores a watch for as long as threads queue.
    pub(crate) fn keep_watch(&self, watch: Watch) {
        let previous = self.lock.lock().rare().watch.replace(watch);
        drop(previous); // outside the mutex
    }

    /// Returns when the present outage of the store began.
    pub(crate) fn outage_since(&self) -> Option<Moment> {
        self.lock.lock().outage().map(|outage| outage.since)
    }

    /// Returns the reason why the store grants nothing until after `deadline`, if there is one.
    pub(crate) fn paused_beyond(&self, deadline: Moment) -> Option<Error> {
        let state = self.lock.lock();
        let outage = state
            .outage()
            .filter(|it| it.ends.is_some_and(|ends| deadline < ends))?;
        Some(outage.error.clone())
    }

    /// Records an outage of the store; `None` after an answer.
    pub(crate) fn set_outage(&self, outage: Option<StoreOutage>) {
        let mut state = self.lock.lock();
        let Some(outage) = outage else {
            if let Some(rare) = &mut state.rare {
                rare.outage = None;
            }
            return;
        };
        let is_pause = outage.ends.is_some();
        let previous = state.rare().outage.replace(outage);
        let is_new = previous.is_none_or(|it| it.ends.is_some() != is_pause);
        state.request_ended(None);
        if is_new {
            // Wake all waiters: each has its own limit for the outage, which may be reached while
            // the head continues.
            state
                .queue
                .behind_head()
                .for_each(|waiter| waiter.request.signal.raise());
        }
    }

    /// Returns the reason why no thread of this client can acquire the lock; `None` if a thread
    /// can.
    pub(crate) fn why_not(&self) -> Option<Error> {
        self.lock.lock().why_not()
    }

    /// Returns what is known at the deadline of a wait that began at `start` and has sent no
    /// attempt. If the head's answer is still due, `signal` is raised when the head's request ends.
    pub(crate) fn known(&self, start: Moment, signal: &Arc<Signal>) -> Known {
        let mut state = self.lock.lock();
        if let Some(error) = state.why_not() {
            return Known::Unavailable(error);
        }
        if state.current.is_some() || state.answered.is_some_and(|at| at >= start) {
            return Known::Busy;
        }
        let head = state.queue.head().filter(|head| head.ticket != self.ticket);
        let asks_until = head.and_then(|head| head.asks_until);
        // A new head sends a request at once. Before its answer arrives, "busy" would be a guess:
        // the lock may be free, or the request may be refused.
        let comes = head.filter(|head| !head.contending);
        let asks_from = comes.map(|_| self.owner.clock().now());
        let timeout = self.owner.command_timeout();
        let Some(by) = asks_until.or(asks_from.map(|from| from + timeout)) else {
            return Known::Nothing;
        };
        state.rare().overdue.push(Arc::clone(signal));
        Known::By(by)
    }

    /// Makes the waiter the holder, with one hold, and removes it from the queue. The next waiter
    /// becomes the head. `then` runs before another thread can see the acquisition.
    pub(crate) fn occupy<R>(
        self,
        acquisition: &Arc<Acquisition>,
        now: Moment,
        then: impl FnOnce(&mut LocalLockState) -> R,
    ) -> R {
        let mut state = self.lock.lock();
        state.current = Some(Arc::clone(acquisition));
        self.lock.registry.held(&self.lock);
        state.turn_since = Some(now);
        state.request_ended(Some(now));
        let result = then(&mut state);
        drop(state);
        result // dropping `self` wakes no waiter: the lock is held
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        if let Some(acquisition) = self.leave() {
            self.owner.decline(&self.lock, &acquisition);
        }
    }
}

/// The callback that wakes the contending head of a name's queue.
pub(crate) struct LockWake(pub(crate) Weak<LocalLock>);

impl LockWake {
    fn wake_if(&self, is_meant: impl FnOnce(&mut Waiter) -> bool) {
        let Some(lock) = self.0.upgrade() else { return };
        let mut state = lock.lock();
        let head = state.queue.head_mut().filter(|head| head.contending);
        let signal = head.and_then(|head| is_meant(head).then(|| Arc::clone(&head.request.signal)));
        // Raised outside the mutex, which the woken thread locks at once.
        drop(state);
        if let Some(signal) = signal {
            signal.raise();
        }
    }
}

impl Wake for LockWake {
    /// Wakes the contending head. Until the next attempt direct grants are dropped, because this
    /// call may follow a failover: a direct grant may come from a former master, or from a store
    /// that has lost the grant.
    fn wake(&self) {
        self.wake_if(|head| {
            head.direct = None;
            head.is_outdated = true;
            true
        });
    }

    fn wake_next(&self, next: &NextOwner) {
        self.wake_if(|head| {
            let Some(owner) = head.asks_as else {
                return true;
            };
            let is_meant = owner.matches(&next.owner);
            if is_meant && !head.is_outdated {
                head.direct.clone_from(&next.granted);
            }
            is_meant
        });
    }
}
