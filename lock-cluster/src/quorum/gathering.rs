//! [`Gathering`]: where the answers of all nodes come together, and one thread waits until they decide something.

use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// The answers to one question, by the number of the node. Late ones are taken, too, and looked at by nobody.
pub(super) struct Gathering<T> {
    answers: Mutex<Vec<Option<T>>>,
    signal: Arc<Signal>,
}

impl<T> Gathering<T> {
    pub(super) fn of(nodes: usize) -> Arc<Self> {
        let answers = (0..nodes).map(|_| None).collect();
        Arc::new(Self { answers: Mutex::new(answers), signal: Arc::default() })
    }

    /// The answer of this node.
    pub(super) fn put(&self, node: usize, answer: T) {
        self.answers.lock()[node] = Some(answer);
        self.signal.raise();
    }

    /// Waits until `decide` makes something of the answers, or all are there, or `by` has come. `None` if it made nothing
    /// of them even then.
    pub(super) fn wait<R>(
        &self,
        clock: &dyn Clock,
        by: Moment,
        mut decide: impl FnMut(&[Option<T>]) -> Option<R>,
    ) -> Option<R> {
        loop {
            let answers = self.answers.lock();
            let decided = decide(&answers);
            let is_over = answers.iter().all(Option::is_some);
            drop(answers);
            if decided.is_some() || is_over || clock.now() >= by {
                return decided;
            }
            clock.wait(&self.signal, by);
        }
    }

    /// Looks at the answers that there are.
    pub(super) fn look<R>(&self, look: impl FnOnce(&[Option<T>]) -> R) -> R {
        look(&self.answers.lock())
    }
}
