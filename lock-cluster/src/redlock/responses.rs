//! [`Responses`]: the responses of all nodes to one request, for a thread that waits for a
//! decision.

use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// The responses by node number. Late responses are stored too, and not read.
pub(super) struct Responses<T> {
    values: Mutex<Vec<Option<T>>>,
    signal: Arc<Signal>,
}

impl<T> Responses<T> {
    pub(super) fn of(nodes: usize) -> Arc<Self> {
        let values = (0..nodes).map(|_| None).collect();
        Arc::new(Self { values: Mutex::new(values), signal: Arc::default() })
    }

    pub(super) fn put(&self, node: usize, value: T) {
        self.values.lock()[node] = Some(value);
        self.signal.raise();
    }

    /// Waits until `decide` returns a decision, all responses are there, or `by` has come.
    pub(super) fn wait<R>(
        &self,
        clock: &dyn Clock,
        by: Moment,
        mut decide: impl FnMut(&[Option<T>]) -> Option<R>,
    ) -> Option<R> {
        loop {
            let values = self.values.lock();
            let decision = decide(&values);
            let is_complete = values.iter().all(Option::is_some);
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

    /// Reads the present responses.
    pub(super) fn read<R>(&self, read: impl FnOnce(&[Option<T>]) -> R) -> R {
        read(&self.values.lock())
    }
}
