//! [`Bells`]: a waiter's watches on all nodes, of which it hears once or twice for each release.
//!
//! A release is told by every node that had the lock. Whoever waits is woken by the first of them: the others come within
//! moments, and each would send it to ask all nodes again, and count as a release of its own. A second message from a node
//! that has told already is another release, and wakes. So does the one that makes it a majority: what was told before may
//! have been rivals giving back their parts, and this one the holder. Of those that hold a majority, somebody's message is
//! always one or the other.

use super::seat::Core;
use super::tally::majority;
use lock_core::backend::{Failure, Wake, Watch};
use lock_core::{Clock, LockName, Moment};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long messages of several nodes are taken for one release.
const ECHO: Duration = Duration::from_millis(20);

/// One waiter's.
pub(super) struct Bells {
    wake: Arc<dyn Wake>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Ended with this.
    watches: Mutex<Vec<Watch>>,
}

struct State {
    /// Which nodes have told of the release that it was woken for last.
    told: Vec<bool>,
    woken: Option<Moment>,
}

/// A waiter's watch on one node that has not begun yet.
#[derive(Clone)]
pub(super) struct Unhung {
    name: LockName,
    bells: Weak<Bells>,
}

impl Unhung {
    pub(super) fn new(name: &LockName, bells: &Arc<Bells>) -> Self {
        Self { name: name.clone(), bells: Arc::downgrade(bells) }
    }

    /// Whether anybody still waits.
    pub(super) fn is_wanted(&self) -> bool {
        self.bells.strong_count() > 0
    }

    /// Begins it. The waiter is not kept alive meanwhile: a watch that was dropped is silent, also while a dead node is
    /// still asked.
    pub(super) fn hang(&self, core: &Core, by: Moment) -> Result<(), Failure> {
        if self.is_wanted() {
            let bell = Bells::bell(Weak::clone(&self.bells), core.number());
            let watch = core.store().watch(&self.name, bell, by)?;
            self.bells.upgrade().inspect(|bells| bells.keep(watch));
        }
        Ok(())
    }

    /// What was told there before is not known.
    pub(super) fn look_again(&self) {
        self.bells.upgrade().inspect(|bells| bells.wake.wake());
    }
}

/// One node's.
struct Bell {
    bells: Weak<Bells>,
    node: usize,
}

impl Bells {
    pub(super) fn new(nodes: usize, wake: Arc<dyn Wake>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = Mutex::new(State { told: vec![false; nodes], woken: None });
        Arc::new(Self { wake, clock, state, watches: Mutex::default() })
    }

    /// What this node rings, for as long as the watch lasts.
    pub(super) fn bell(bells: Weak<Self>, node: usize) -> Arc<dyn Wake> {
        Arc::new(Bell { bells, node })
    }

    pub(super) fn keep(&self, watch: Watch) {
        self.watches.lock().push(watch);
    }

    fn ring(&self, node: usize) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let is_new = state.told[node] || state.woken.is_none_or(|woken| now >= woken + ECHO);
        if is_new {
            state.told.fill(false);
            state.woken = Some(now);
        }
        state.told[node] = true;
        let told = state.told.iter().filter(|told| **told).count();
        let makes_a_majority = told == majority(state.told.len());
        drop(state);
        if is_new || makes_a_majority {
            self.wake.wake();
        }
    }
}

impl Wake for Bell {
    fn wake(&self) {
        if let Some(bells) = self.bells.upgrade() {
            bells.ring(self.node);
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
        let bells = Bells::new(5, Arc::clone(&count) as _, Arc::new(clock.clone()));
        let nodes: Vec<_> = (0..5).map(|node| Bells::bell(Arc::downgrade(&bells), node)).collect();
        let woken = || count.0.swap(0, Ordering::Relaxed);
        let mut heard = Vec::new();
        for node in [0, 1, 2, 3, 4, 3, 1, 0] {
            nodes[node].wake();
            heard.push(woken());
        }
        assert_eq!(heard, [1, 0, 1, 0, 0, 1, 0, 1]);
        clock.advance(ECHO);
        nodes[4].wake();
        assert_eq!(woken(), 1);
    }

    #[test]
    fn holder_release_after_rival_rollbacks_wakes_the_waiter() {
        let (clock, count) = (ManualClock::new(), Arc::new(Count::default()));
        let bells = Bells::new(5, Arc::clone(&count) as _, Arc::new(clock));
        let bell = |node: &usize| Bells::bell(Arc::downgrade(&bells), *node).wake();
        for rivals in [&[][..], &[3], &[3, 4]] {
            rivals.iter().for_each(bell);
            count.0.store(0, Ordering::Relaxed);
            [0, 1, 2].iter().for_each(bell);
            assert!(count.0.load(Ordering::Relaxed) > 0, "after {rivals:?}");
        }
    }
}
