//! [`QuorumWatch`]: a waiter's watches on all nodes, which wake the waiter once or twice per
//! release.
//!
//! Each node that had granted the lock reports its release. The first report wakes the waiter.
//! Reports of other nodes within [`REPORT_WINDOW`] count as the same release and do not wake the
//! waiter, except the report that completes a majority: the earlier reports may come from failed
//! attempts of rivals, which release the lock on the few nodes that granted it to them. A second
//! report of the same node, or a report after [`REPORT_WINDOW`], counts as another release, and
//! wakes the waiter.

use super::majority::majority;
use super::node::QuorumNode;
use lock_core::backend::{Failure, Wake, Watch};
use lock_core::{Clock, LockName, Moment};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time for which reports of several nodes count as one release, because the messages of the
/// nodes arrive at different times.
const REPORT_WINDOW: Duration = Duration::from_millis(20);

/// The watches of one waiter.
pub(super) struct QuorumWatch {
    wake: Arc<dyn Wake>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// The watches on the nodes, which end with the quorum watch.
    watches: Mutex<Vec<Watch>>,
}

struct State {
    /// The nodes that have reported the latest release.
    reported: Vec<bool>,
    woken: Option<Moment>,
}

/// A watch that has not started on a node yet.
#[derive(Clone)]
pub(super) struct PendingWatch {
    name: LockName,
    watch: Weak<QuorumWatch>,
}

impl PendingWatch {
    pub(super) fn new(name: &LockName, watch: &Arc<QuorumWatch>) -> Self {
        Self {
            name: name.clone(),
            watch: Arc::downgrade(watch),
        }
    }

    /// Returns whether the waiter still waits.
    pub(super) fn is_wanted(&self) -> bool {
        self.watch.strong_count() > 0
    }

    /// Starts the watch on this node. If the wait ends meanwhile, the watch ends, too.
    pub(super) fn start(
        &self,
        number: usize,
        node: &QuorumNode,
        by: Moment,
    ) -> Result<(), Failure> {
        let wake = Arc::new(NodeWake {
            watch: Weak::clone(&self.watch),
            node: number,
        });
        let watch = node.watch(&self.name, wake, by)?;
        self.watch
            .upgrade()
            .inspect(|all| all.watches.lock().push(watch));
        Ok(())
    }

    /// Wakes the waiter, which may have missed earlier releases.
    pub(super) fn wake(&self) {
        self.watch.upgrade().inspect(|watch| watch.wake.wake());
    }
}

/// The callback of the watch on one node.
struct NodeWake {
    watch: Weak<QuorumWatch>,
    node: usize,
}

impl QuorumWatch {
    pub(super) fn new(nodes: usize, wake: Arc<dyn Wake>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = Mutex::new(State {
            reported: vec![false; nodes],
            woken: None,
        });
        Arc::new(Self {
            wake,
            clock,
            state,
            watches: Mutex::default(),
        })
    }

    fn note_report(&self, node: usize) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let is_outside = |woken| now >= woken + REPORT_WINDOW;
        let is_new = state.reported[node] || state.woken.is_none_or(is_outside);
        if is_new {
            state.reported.fill(false);
            state.woken = Some(now);
        }
        state.reported[node] = true;
        let count = state.reported.iter().filter(|reported| **reported).count();
        let completes_majority = count == majority(state.reported.len());
        drop(state);
        if is_new || completes_majority {
            self.wake.wake();
        }
    }
}

impl Wake for NodeWake {
    fn wake(&self) {
        if let Some(watch) = self.watch.upgrade() {
            watch.note_report(self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::ManualClock;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn release_wakes_at_its_first_message_and_at_its_majority() {
        let (clock, count) = (ManualClock::new(), Arc::new(Count::default()));
        let watch = QuorumWatch::new(5, Arc::clone(&count) as _, Arc::new(clock.clone()));
        let nodes: Vec<_> = (0..5)
            .map(|node| NodeWake {
                watch: Arc::downgrade(&watch),
                node,
            })
            .collect();
        let woken = || count.0.swap(0, Ordering::Relaxed);
        let mut heard = Vec::new();
        for node in [0, 1, 2, 3, 4, 3, 1, 0] {
            nodes[node].wake();
            heard.push(woken());
        }
        assert_eq!(heard, [1, 0, 1, 0, 0, 1, 0, 1]);
        clock.jump(REPORT_WINDOW);
        nodes[4].wake();
        assert_eq!(woken(), 1);
    }

    #[test]
    fn holder_release_after_rival_rollbacks_wakes_the_waiter() {
        let (clock, count) = (ManualClock::new(), Arc::new(Count::default()));
        let watch = QuorumWatch::new(5, Arc::clone(&count) as _, Arc::new(clock));
        let node_wake = |node: &usize| {
            NodeWake {
                watch: Arc::downgrade(&watch),
                node: *node,
            }
            .wake();
        };
        for rivals in [&[][..], &[3], &[3, 4]] {
            rivals.iter().for_each(node_wake);
            count.0.store(0, Ordering::Relaxed);
            [0, 1, 2].iter().for_each(node_wake);
            assert!(count.0.load(Ordering::Relaxed) > 0, "after {rivals:?}");
        }
    }
}
