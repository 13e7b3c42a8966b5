//! [`RedirectQueue`]: asynchronous releases that were redirected, sent in the background.

use super::topology::Topology;
use lock_core::Moment;
use lock_core::backend::{
    AcquisitionId, BackgroundTask, Failure, OnReleased, Release, ReleaseOptions, call_backend,
    contain,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The queue and its task.
#[derive(Clone, Default)]
pub(crate) struct RedirectQueue {
    releases: Arc<Mutex<VecDeque<RedirectedRelease>>>,
    task: BackgroundTask,
}

/// One release.
pub(crate) struct RedirectedRelease {
    pub(crate) topology: Arc<Topology>,
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
        let clock = Arc::clone(release.topology.clock());
        self.releases.lock().push_back(release);
        let releases = Arc::clone(&self.releases);
        let next = move || releases.lock().pop_front();
        let turn = move || {
            while let Some(release) = next() {
                // A callback that panics delays no other release.
                contain(|| release.send());
            }
            None
        };
        if self.task.start(&clock, turn).is_err() {
            let releases = std::mem::take(&mut *self.releases.lock());
            releases
                .into_iter()
                .for_each(|it| (it.done)(it.first_outcome));
        }
    }
}

impl RedirectedRelease {
    fn send(self) {
        let Self {
            topology,
            acquisition,
            options,
            by,
            done,
            first_outcome,
        } = self;
        // The caller is told of a panic, too.
        let outcome = call_backend(|| topology.release(&acquisition, options, by));
        done(match (first_outcome, outcome) {
            // It was freed before its slot moved.
            (Ok(freed), Ok(Release::Gone)) => Ok(freed),
            (_, outcome) => outcome,
        });
    }
}
