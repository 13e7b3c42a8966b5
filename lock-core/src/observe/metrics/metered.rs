//! [`Metered`]: a backend whose requests are timed.

use super::{Metrics, Request};
use crate::backend::diagnosis::Finding;
use crate::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Backend, Failure, HolderInfo, LockInfo,
    LockPage, NO_FORCED_RELEASE, NO_LISTING, NO_SEMAPHORES, NodeId, OnReleased, PagePosition,
    PermitChange, PermitOutcome, Release, ReleaseOptions, Renewal, RenewalRequest, Replicated,
    Voter, Wake, Watch, call_backend,
};
use crate::name::LockName;
use crate::time::Moment;
use std::fmt;
use std::sync::Arc;

/// A wrapper of a backend that records the duration of each request, except for `inspect_all`,
/// `diagnose` and the requests of a [`Voter`]. The engine records `submit_release`.
pub(super) struct Metered {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) metrics: Metrics,
}

impl Metered {
    fn timed<T>(
        &self,
        request: Request,
        call: impl FnOnce(&dyn Backend) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let start = self.metrics.request_starts();
        let answer = call_backend(|| call(&*self.backend));
        self.metrics.request(request, start, answer.as_ref().err());
        answer
    }
}

// The lint is denied, so that a new method with a default must be forwarded as well.
#[deny(clippy::missing_trait_methods)]
impl Backend for Metered {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        self.timed(Request::Acquire, |backend| backend.acquire(attempt, by))
    }

    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let start = self.metrics.request_starts();
        let answers = self.backend.renew(node, batch, by);
        // A batch has one duration. The batch was sent if any part of it was sent.
        let was_sent = |answer: &&_| !matches!(answer, Err(Failure::NotSent(_)));
        let answer = answers.iter().find(was_sent).or(answers.first());
        let failure = answer.and_then(|answer| answer.as_ref().err());
        self.metrics.request(Request::Renew, start, failure);
        answers
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.timed(Request::Release, |backend| {
            backend.release(acquisition, closing, by)
        })
    }

    /// Timed by the engine, which is notified of the reply: a callback around `done` would be one
    /// more allocation for each dropped guard.
    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        self.backend.submit_release(acquisition, closing, by, done);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.timed(Request::Read, |backend| backend.inspect(name, by))
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        self.timed(Request::Read, |backend| backend.verify(acquisition, by))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.timed(Request::Watch, |backend| backend.watch(name, wake, by))
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        self.backend.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        self.backend.abilities()
    }

    fn close(&self, until: Moment) {
        self.backend.close(until);
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.backend.admin().is_some().then_some(self as &dyn Admin)
    }

    fn replicated(&self) -> Option<&dyn Replicated> {
        self.backend.replicated()
    }

    fn voter(&self) -> Option<&dyn Voter> {
        self.backend.voter()
    }
}

#[deny(clippy::missing_trait_methods)]
impl Admin for Metered {
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.timed(Request::Force, |backend| {
            backend
                .require_admin(NO_FORCED_RELEASE)?
                .force_release(name, by)
        })
    }

    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        self.timed(Request::Force, |backend| {
            backend
                .require_admin(NO_SEMAPHORES)?
                .change_permits(name, change, by)
        })
    }

    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        self.backend.inspect_many(names, by)
    }

    fn list(&self, pattern: &str, from: &PagePosition, by: Moment) -> Result<LockPage, Failure> {
        self.timed(Request::Read, |backend| {
            backend.require_admin(NO_LISTING)?.list(pattern, from, by)
        })
    }

    fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        self.backend
            .admin()
            .map_or(Ok(Vec::new()), |admin| admin.diagnose(by))
    }
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}
