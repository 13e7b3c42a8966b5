//! [`ResendQueue`]: submitted releases that must go to another node, sent in the background.

use super::send::{release, settled_on};
use crate::topology::Topology;
use lock_core::backend::{
    AcquisitionId, BackgroundTask, Failure, OnReleased, Release, ReleaseOptions, call_backend,
    contain,
};
use lock_core::{Clock, Moment};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The queue and its task. Clones share both.
pub(super) struct ResendQueue<T> {
    releases: Arc<Mutex<VecDeque<Resend<T>>>>,
    task: BackgroundTask,
}

/// A release that must go to another node.
pub(super) struct Resend<T> {
    pub(super) topology: Arc<T>,
    pub(super) acquisition: AcquisitionId,
    pub(super) options: ReleaseOptions,
    pub(super) by: Moment,
    pub(super) done: OnReleased,
    /// The outcome on the first node: a redirect, or the answer of a node that no longer has the
    /// lock's slot.
    pub(super) first_outcome: Result<Release, Failure>,
}

impl<T: Topology> ResendQueue<T> {
    /// Adds a release, without waiting.
    pub(super) fn send(&self, release: Resend<T>, clock: &Arc<dyn Clock>) {
        self.releases.lock().push_back(release);
        let releases = Arc::clone(&self.releases);
        let next = move || releases.lock().pop_front();
        let turn = move || {
            while let Some(release) = next() {
                // A callback that panics must not stop the other releases.
                contain(|| release.send());
            }
            None
        };
        if self.task.start(clock, turn).is_err() {
            let releases = std::mem::take(&mut *self.releases.lock());
            releases.into_iter().for_each(|it| {
                let name = &it.acquisition.name;
                let settled = |failure| settled_on::<T>(name, failure);
                (it.done)(it.first_outcome.map_err(settled));
            });
        }
    }
}

impl<T> Clone for ResendQueue<T> {
    fn clone(&self) -> Self {
        Self {
            releases: Arc::clone(&self.releases),
            task: self.task.clone(),
        }
    }
}

impl<T> Default for ResendQueue<T> {
    fn default() -> Self {
        Self {
            releases: Arc::default(),
            task: BackgroundTask::default(),
        }
    }
}

impl<T: Topology> Resend<T> {
    fn send(self) {
        let Self {
            topology,
            acquisition,
            options,
            by,
            done,
            first_outcome,
        } = self;
        // A panic becomes a failure, so that the callback is called.
        let outcome = call_backend(|| release(&topology, &acquisition, options, by));
        done(match (first_outcome, outcome) {
            // The first attempt freed the lock before it moved.
            (Ok(freed), Ok(Release::Gone)) => Ok(freed),
            (_, outcome) => outcome,
        });
    }
}
