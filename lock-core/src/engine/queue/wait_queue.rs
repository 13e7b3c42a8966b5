//! [`WaitQueue`]: the waiting threads of a name, first in, first out.

use super::LockRequest;
use crate::backend::DirectGrant;
use crate::backend::owner::OwnerId;
use crate::engine::acquisition::Acquisition;
use crate::time::{Moment, Signal};
use std::collections::VecDeque;
use std::sync::Arc;

/// A queue of waiters. A hand-off grants the lock to the head, which is the first waiter without a
/// grant. A waiter with a grant stays in front until it fetches the acquisition or leaves.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// Boxed to save memory, because a client may hold very many locks. Freed if the queue is empty
    /// when the timer checks the lock.
    waiters: Option<Box<Waiters>>,
    next_ticket: u64,
}

#[derive(Default)]
struct Waiters {
    all: VecDeque<Waiter>,
    /// The number of waiters with a grant.
    granted: usize,
}

/// A thread in the queue.
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) request: LockRequest,
    /// The handed-off acquisition, until the waiter fetches it. It may have been lost meanwhile.
    granted: Option<Arc<Acquisition>>,
    /// True if the waiter is a head that sends attempts, so that notifications of the store wake
    /// it.
    pub(super) contending: bool,
    /// The time at which the answer to the waiter's pending request is due.
    pub(super) asks_until: Option<Moment>,
    /// The owner ID of the waiter's last attempt.
    pub(super) asks_as: Option<OwnerId>,
    /// The direct grant that another owner's release made to the owner `asks_as`, until the waiter
    /// fetches it.
    pub(super) direct: Option<DirectGrant>,
    /// True if a direct grant to the last attempt must be ignored, because the store may have
    /// failed over or lost its data since that attempt.
    pub(super) is_outdated: bool,
}

/// The grant and the role of a waiter when it left the queue.
#[derive(Default)]
pub(super) struct Departure {
    pub(super) granted: Option<Arc<Acquisition>>,
    pub(super) was_head: bool,
}

impl WaitQueue {
    /// Returns whether the queue has no head: no waiter without a grant.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of waiters without a grant.
    pub(super) fn len(&self) -> usize {
        self.waiters
            .as_ref()
            .map_or(0, |waiters| waiters.all.len() - waiters.granted)
    }

    pub(super) fn head(&self) -> Option<&Waiter> {
        let waiters = self.waiters.as_ref()?;
        waiters.all.get(waiters.granted)
    }

    pub(super) fn head_mut(&mut self) -> Option<&mut Waiter> {
        let Waiters { all, granted } = &mut **self.waiters.as_mut()?;
        all.get_mut(*granted)
    }

    /// Returns the waiters behind the head.
    pub(super) fn behind_head(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters
            .iter()
            .flat_map(|waiters| waiters.all.iter().skip(waiters.granted + 1))
    }

    /// Adds a waiter at the end. Returns its ticket.
    pub(super) fn push(&mut self, request: LockRequest) -> u64 {
        self.insert(|waiters| waiters.all.len(), request)
    }

    /// Adds a waiter before all waiters without a grant, but behind a contending head: otherwise
    /// two waiters would contend, and one of them would miss its hand-off. Returns the waiter's
    /// ticket.
    pub(super) fn push_front(&mut self, request: LockRequest) -> u64 {
        let is_behind = self.head().is_some_and(|head| head.contending);
        self.insert(|waiters| waiters.granted + usize::from(is_behind), request)
    }

    fn insert(&mut self, at: impl FnOnce(&Waiters) -> usize, request: LockRequest) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (granted, contending) = (None, false);
        let (asks_until, asks_as, direct) = (None, None, None);
        let waiter = Waiter {
            ticket,
            request,
            granted,
            contending,
            asks_until,
            asks_as,
            direct,
            is_outdated: false,
        };
        let waiters = self.waiters.get_or_insert_default();
        if waiters.all.capacity() == 0 {
            waiters.all.reserve_exact(1); // rarely more than one waiter
        }
        match at(waiters) {
            at if at == waiters.all.len() => waiters.all.push_back(waiter), // the faster call
            at => waiters.all.insert(at, waiter),
        }
        ticket
    }

    /// Hands the acquisition off to the head. Returns the signal that wakes the head; `None` if the
    /// queue has no head.
    pub(super) fn grant(&mut self, acquisition: Arc<Acquisition>) -> Option<Arc<Signal>> {
        let Waiters { all, granted } = &mut **self.waiters.as_mut()?;
        let head = all.get_mut(*granted)?;
        head.granted = Some(acquisition);
        *granted += 1;
        Some(Arc::clone(&head.request.signal))
    }

    /// Removes this waiter if it received a hand-off, and returns the acquisition.
    pub(super) fn take_granted(&mut self, ticket: u64) -> Option<Arc<Acquisition>> {
        let waiters = self.waiters.as_mut()?;
        let at = (0..waiters.granted).find(|at| waiters.all[*at].ticket == ticket)?;
        waiters.remove_at(at).granted
    }

    /// Removes the waiter, if it is still in the queue.
    pub(super) fn remove(&mut self, ticket: u64) -> Departure {
        let Some(waiters) = &mut self.waiters else {
            return Departure::default();
        };
        let at = waiters
            .all
            .iter()
            .position(|waiter| waiter.ticket == ticket);
        at.map_or_else(Departure::default, |at| waiters.remove_at(at))
    }

    /// Frees the memory of an empty queue.
    pub(super) fn free_unused(&mut self) {
        self.waiters.take_if(|waiters| waiters.all.is_empty());
    }
}

impl Waiters {
    fn remove_at(&mut self, at: usize) -> Departure {
        let was_head = at == self.granted;
        let waiter = if at == 0 {
            self.all.pop_front()
        } else {
            self.all.remove(at)
        };
        let granted = waiter.and_then(|waiter| waiter.granted);
        self.granted -= usize::from(granted.is_some());
        Departure { granted, was_head }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::replication::Replication;
    use crate::engine::acquisition::AcquisitionInit;
    use crate::engine::holder::Holder;
    use crate::time::lease::LeaseTime;
    use std::time::Duration;

    fn request() -> LockRequest {
        LockRequest {
            holder: Holder::Guard,
            signal: Arc::default(),
            since: Moment::from_nanos(0),
            watched: None,
            replication: Replication::off(),
        }
    }

    fn acquisition() -> Arc<Acquisition> {
        let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
        Arc::new(Acquisition::new(AcquisitionInit::of_guard(
            Moment::from_nanos(0),
            lease,
        )))
    }

    /// Compares the queue with two lists: the waiters with a grant and the waiters without one.
    #[test]
    fn waiters_with_a_grant_stand_before_the_head() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let mut queue = WaitQueue::default();
            let (mut granted, mut waiting) = (VecDeque::new(), VecDeque::new());
            for _ in 0..20 {
                match random.u8(0..6) {
                    0 | 1 => waiting.push_back(queue.push(request())),
                    2 => waiting.push_front(queue.push_front(request())),
                    3 => {
                        assert_eq!(queue.grant(acquisition()).is_some(), !waiting.is_empty());
                        granted.extend(waiting.pop_front());
                    }
                    4 => {
                        let all: Vec<u64> = granted.iter().chain(&waiting).copied().collect();
                        let Some(ticket) = random.choice(all) else {
                            continue;
                        };
                        let is_granted = granted.contains(&ticket);
                        assert_eq!(queue.take_granted(ticket).is_some(), is_granted);
                        granted.retain(|it| *it != ticket);
                    }
                    _ => {
                        let all: Vec<u64> = granted.iter().chain(&waiting).copied().collect();
                        let ticket = random.choice(all).unwrap_or(99);
                        let Departure {
                            granted: grant,
                            was_head,
                        } = queue.remove(ticket);
                        assert_eq!(grant.is_some(), granted.contains(&ticket));
                        assert_eq!(was_head, waiting.front() == Some(&ticket));
                        granted.retain(|it| *it != ticket);
                        waiting.retain(|it| *it != ticket);
                    }
                }
                assert_eq!(
                    queue.head().map(|head| head.ticket),
                    waiting.front().copied()
                );
                let behind: Vec<_> = queue.behind_head().map(|waiter| waiter.ticket).collect();
                assert!(behind.iter().eq(waiting.iter().skip(1)));
                assert_eq!(
                    (queue.len(), queue.is_empty()),
                    (waiting.len(), waiting.is_empty())
                );
                queue.free_unused();
            }
        }
    }
}
