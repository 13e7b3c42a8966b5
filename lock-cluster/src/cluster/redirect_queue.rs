//! [`RedirectQueue`]: asynchronous releases that were redirected, on a thread that ends with them.

use super::redirect::Router;
use lock_core::Moment;
use lock_core::backend::{AcquisitionId, Failure, OnReleased, Release, ReleaseOptions, contain};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

/// The queue and its thread.
#[derive(Clone, Default)]
pub(crate) struct RedirectQueue(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    releases: VecDeque<RedirectedRelease>,
    is_running: bool,
}

/// One release.
pub(crate) struct RedirectedRelease {
    pub(crate) router: Router,
    pub(crate) acquisition: AcquisitionId,
    pub(crate) options: ReleaseOptions,
    pub(crate) by: Moment,
    pub(crate) done: OnReleased,
    /// The outcome on the first node: a redirect, or the answer of a node that lost the slot.
    pub(crate) first_outcome: Result<Release, Failure>,
}

impl RedirectQueue {
    /// Adds a release. Waits for nothing.
    pub(crate) fn send(&self, release: RedirectedRelease) {
        let mut state = self.0.lock();
        state.releases.push_back(release);
        if state.is_running {
            return;
        }
        let queue = self.clone();
        let thread = thread::Builder::new().name("distlock-again".to_owned());
        state.is_running = thread.spawn(move || queue.run()).is_ok();
        if state.is_running {
            return;
        }
        let releases = std::mem::take(&mut state.releases);
        drop(state);
        releases.into_iter().for_each(|it| (it.done)(it.first_outcome));
    }

    fn run(&self) {
        loop {
            let mut state = self.0.lock();
            let Some(release) = state.releases.pop_front() else {
                state.is_running = false; // under the lock: the next release starts another thread
                return;
            };
            drop(state);
            let RedirectedRelease { router, acquisition, options, by, done, first_outcome } =
                release;
            // A callback may panic, and must not end the others.
            contain(|| {
                done(match (first_outcome, router.release(&acquisition, options, by)) {
                    // It was freed before its slot moved.
                    (Ok(freed), Ok(Release::Gone)) => Ok(freed),
                    (_, outcome) => outcome,
                });
            });
        }
    }
}
