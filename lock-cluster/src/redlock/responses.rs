//! [`Responses`]: the responses of all nodes to one request, for a thread that waits for a
//! decision.

use lock_core::backend::contain;
use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The responses by node number, or by position in a list of nodes. Responses that arrive after
/// [`wait`](Self::wait) has returned are stored, too.
pub(super) struct Responses<T> {
    values: Mutex<Vec<Option<T>>>,
    /// The number of nodes whose response is preliminary.
    open: AtomicUsize,
    signal: Arc<Signal>,
}

impl<T> Responses<T> {
    pub(super) fn of(nodes: usize) -> Arc<Self> {
        let values = (0..nodes).map(|_| None).collect();
        let (values, open) = (Mutex::new(values), AtomicUsize::new(0));
        Arc::new(Self {
            values,
            open,
            signal: Arc::default(),
        })
    }

    pub(super) fn put(&self, node: usize, value: T) {
        self.values.lock()[node] = Some(value);
        self.signal.raise();
    }

    /// Stores a response, calls `replace`, and stores the response that `replace` returns instead.
    /// Until then [`wait`](Self::wait) decides with the first response, but without a decision it
    /// awaits the second one. If `replace` panics, the first response stays. Returns the response
    /// that stays.
    pub(super) fn put_preliminary(&self, node: usize, value: T, replace: impl FnOnce() -> T) -> T
    where
        T: Clone,
    {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.put(node, value.clone());
        let value = contain(replace).unwrap_or(value);
        self.put(node, value.clone());
        self.open.fetch_sub(1, Ordering::AcqRel);
        value
    }

    /// Waits until `decide` returns a decision, all responses have arrived and none of them is
    /// preliminary, or `by` has come. Returns the decision, if there is one.
    pub(super) fn wait<R>(
        &self,
        clock: &dyn Clock,
        by: Moment,
        mut decide: impl FnMut(&[Option<T>]) -> Option<R>,
    ) -> Option<R> {
        loop {
            let values = self.values.lock();
            let decision = decide(&values);
            let has_open = self.open.load(Ordering::Acquire) > 0;
            let is_complete = !has_open && values.iter().all(Option::is_some);
            drop(values);
            if decision.is_some() || is_complete || clock.now() >= by {
                return decision;
            }
            clock.wait(&self.signal, by);
        }
    }

    /// Waits for all responses, at most until `by`.
    pub(super) fn wait_for_all(&self, clock: &dyn Clock, by: Moment) {
        let _none: Option<()> = self.wait(clock, by, |_| None);
    }

    /// Calls `read` with the present responses.
    pub(super) fn read<R>(&self, read: impl FnOnce(&[Option<T>]) -> R) -> R {
        read(&self.values.lock())
    }
}
