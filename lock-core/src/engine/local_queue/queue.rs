//! [`WaitQueue`]: the waiting threads of a name, first in, first out.

use super::LockRequest;
use crate::clock::{Moment, Signal};
use crate::engine::acquisition::Acquisition;
use crate::owner::OwnerId;
use crate::sync::mutant;
use std::collections::VecDeque;
use std::sync::Arc;

/// A waiter that is granted a hand-off stays where it is until it fetches it. So those with a grant
/// stand in front, and the first without one is the head.
#[derive(Default)]
pub(super) struct WaitQueue {
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
}

/// A thread in the queue.
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) request: LockRequest,
    /// What it was handed and has not fetched yet. It may have been lost meanwhile.
    granted: Option<Arc<Acquisition>>,
    /// The head that asks the store: wake-ups from the store are for it.
    pub(super) contending: bool,
    /// By when its request that is under way must be answered.
    pub(super) asks_until: Option<Moment>,
    /// As which owner it asked last.
    pub(super) asks_as: Option<OwnerId>,
}

/// What a waiter left behind.
pub(super) struct Left {
    pub(super) granted: Option<Arc<Acquisition>>,
    pub(super) was_head: bool,
}

impl WaitQueue {
    /// Whether no thread waits without a grant.
    pub(super) fn is_empty(&self) -> bool {
        self.head().is_none()
    }

    /// How many threads wait without a grant.
    pub(super) fn len(&self) -> usize {
        self.waiting().count()
    }

    /// Whether more than the head waits without a grant.
    pub(super) fn has_several(&self) -> bool {
        self.waiting().nth(1).is_some()
    }

    pub(super) fn head(&self) -> Option<&Waiter> {
        self.waiting().next()
    }

    pub(super) fn head_mut(&mut self) -> Option<&mut Waiter> {
        self.waiters.iter_mut().find(|waiter| waiter.granted.is_none())
    }

    /// All that wait without a grant, the head first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|waiter| waiter.granted.is_none())
    }

    /// Goes to the end. Returns the waiter's ticket.
    pub(super) fn push(&mut self, request: LockRequest) -> u64 {
        if self.waiters.capacity() == 0 {
            // Mostly there is one, and it does not stay.
            self.waiters.reserve_exact(1);
        }
        self.insert(self.waiters.len(), request)
    }

    /// Goes to the front. Behind a contending head: otherwise two waiters contend, and one misses
    /// its hand-off.
    pub(super) fn push_front(&mut self, request: LockRequest) -> u64 {
        let head = self.waiters.iter().position(|waiter| waiter.granted.is_none());
        let is_contending = |at: usize| self.waiters[at].contending;
        let at = match head {
            Some(head) if is_contending(head) && !mutant("goes_before_contending_head") => head + 1,
            Some(head) => head,
            None => self.waiters.len(),
        };
        self.insert(at, request)
    }

    fn insert(&mut self, at: usize, request: LockRequest) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (granted, asks_until, asks_as) = (None, None, None);
        let waiter = Waiter { ticket, request, granted, contending: false, asks_until, asks_as };
        self.waiters.insert(at, waiter);
        ticket
    }

    /// Hands this to the head. Returns what wakes it.
    pub(super) fn grant(&mut self, acquisition: Arc<Acquisition>) -> Option<Arc<Signal>> {
        let head = self.head_mut()?;
        head.granted = Some(acquisition);
        Some(Arc::clone(&head.request.signal))
    }

    /// What this waiter was handed: then it leaves.
    pub(super) fn take_granted(&mut self, ticket: u64) -> Option<Arc<Acquisition>> {
        let mut granted = self.waiters.iter().take_while(|waiter| waiter.granted.is_some());
        let at = granted.position(|waiter| waiter.ticket == ticket)?;
        self.remove_at(at)?.granted
    }

    /// The waiter leaves, if it is still here.
    pub(super) fn remove(&mut self, ticket: u64) -> Option<Left> {
        let at = self.waiters.iter().position(|waiter| waiter.ticket == ticket)?;
        let was_head = self.head().is_some_and(|head| head.ticket == ticket);
        self.remove_at(at).map(|waiter| Left { granted: waiter.granted, was_head })
    }

    fn remove_at(&mut self, at: usize) -> Option<Waiter> {
        let waiter = self.waiters.remove(at);
        if self.waiters.is_empty() {
            // A client may hold very many locks that no thread waits for.
            self.waiters = VecDeque::new();
        }
        waiter
    }
}
