//! [`FaultyBackend`]: simulates network faults between the engine and a store.

use lock_core::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Backend, Failure, HolderInfo, LockInfo,
    NO_FORCED_RELEASE, NO_SEMAPHORES, NodeId, PermitChange, PermitOutcome, Release, ReleaseOptions,
    Renewal, RenewalRequest, Replicated, Tokens, Voter, Wake, Watch,
};
use lock_core::{Error, LeaseTime, LockName, Moment, OwnerId, Replication};
use parking_lot::Mutex;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// A backend with simulated network faults. Proposals of a quorum bypass the faults.
#[derive(Debug)]
pub(super) struct FaultyBackend {
    inner: Arc<dyn Backend>,
    /// True while the network is cut: no request is sent then.
    cut: AtomicBool,
    /// The number of acquisitions whose replies will be lost.
    lost_acquires: AtomicU32,
    /// The number of releases whose replies will be lost.
    lost_releases: AtomicU32,
    /// The last attempt that was sent, for a late copy.
    last: Mutex<Option<Sent>>,
    /// Runs right before the next watch begins.
    before_watch: Mutex<Option<Action>>,
    /// Cloned by every active watch.
    watching: Arc<()>,
}

/// An action to run once.
struct Action(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Action(..)")
    }
}

/// All fields of an attempt, to send a copy of it. The copy is built field by field, because
/// [`Attempt`] is `#[non_exhaustive]` and so allows no struct update.
#[derive(Clone, Debug)]
struct Sent {
    name: LockName,
    owner: OwnerId,
    lease: LeaseTime,
    tokens: Tokens,
    replication: Replication,
    beside: Option<OwnerId>,
    waits: bool,
    presence: Duration,
    direct: Option<NonZeroU64>,
    direct_lease: Duration,
    label: Option<Arc<str>>,
}

impl Sent {
    fn of(attempt: &Attempt<'_>) -> Self {
        Self {
            name: attempt.name.clone(),
            owner: attempt.owner,
            lease: attempt.lease,
            tokens: attempt.tokens,
            replication: attempt.replication,
            beside: attempt.beside,
            waits: attempt.waits,
            presence: attempt.presence,
            direct: attempt.direct,
            direct_lease: attempt.direct_lease,
            label: attempt.label.cloned(),
        }
    }

    fn attempt(&self) -> Attempt<'_> {
        Attempt::new(&self.name, self.owner, self.lease)
            .tokens(self.tokens)
            .replication(self.replication)
            .beside(self.beside)
            .waits(self.waits)
            .presence(self.presence)
            .direct(self.direct)
            .direct_lease(self.direct_lease)
            .label(self.label.as_ref())
    }
}

impl FaultyBackend {
    pub(super) fn on(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            cut: AtomicBool::new(false),
            lost_acquires: AtomicU32::new(0),
            lost_releases: AtomicU32::new(0),
            last: Mutex::new(None),
            before_watch: Mutex::new(None),
            watching: Arc::new(()),
        })
    }

    /// Cuts the network: requests fail without being sent, until [`mend`](Self::mend) is called.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// Ends all faults.
    pub(super) fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
        self.lost_acquires.store(0, Ordering::SeqCst);
        self.lost_releases.store(0, Ordering::SeqCst);
    }

    /// Loses the replies of the next `count` acquisitions, which are executed.
    pub(super) fn lose_acquire_answers(&self, count: u32) {
        self.lost_acquires.store(count, Ordering::SeqCst);
    }

    /// Loses the replies of the next `count` releases, which are executed.
    pub(super) fn lose_release_answers(&self, count: u32) {
        self.lost_releases.store(count, Ordering::SeqCst);
    }

    /// Runs an action before the next watch begins.
    pub(super) fn before_the_next_watch(&self, action: impl FnOnce() + Send + 'static) {
        *self.before_watch.lock() = Some(Action(Box::new(action)));
    }

    /// Returns the number of active watches.
    pub(super) fn watches(&self) -> usize {
        Arc::strong_count(&self.watching) - 1
    }

    /// Delivers a copy of the last attempt, as if the network had delayed it.
    pub(super) fn deliver_a_late_copy(&self, by: Moment) -> Result<Answer, Failure> {
        let sent = self.last.lock().clone().expect("there was an attempt");
        self.inner.acquire(&sent.attempt(), by)
    }

    fn send(&self) -> Result<(), Failure> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(Failure::NotSent(Error::unavailable(
                "the network is cut, on purpose",
            )));
        }
        Ok(())
    }

    fn reply<T>(&self, lost: &AtomicU32, answer: Result<T, Failure>) -> Result<T, Failure> {
        let less = |count: u32| count.checked_sub(1);
        if lost
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .is_ok()
        {
            return Err(Failure::Unknown(Error::unavailable(
                "the answer was lost, on purpose",
            )));
        }
        answer
    }
}

impl Backend for FaultyBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        self.send()?;
        *self.last.lock() = Some(Sent::of(attempt));
        self.reply(&self.lost_acquires, self.inner.acquire(attempt, by))
    }

    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        match self.send() {
            Ok(()) => self.inner.renew(node, batch, by),
            Err(failure) => batch.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.send()?;
        self.reply(
            &self.lost_releases,
            self.inner.release(acquisition, options, by),
        )
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.send()?;
        self.inner.inspect(name, by)
    }

    fn close(&self, until: Moment) {
        self.inner.close(until);
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        self.send()?;
        self.inner.verify(acquisition, by)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.send()?;
        let action = self.before_watch.lock().take();
        if let Some(Action(action)) = action {
            action();
        }
        let watch = self.inner.watch(name, wake, by)?;
        Ok(Watch::new((watch, Arc::clone(&self.watching))))
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        self.inner.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.inner.admin().is_some().then_some(self as &dyn Admin)
    }

    fn replicated(&self) -> Option<&dyn Replicated> {
        self.inner.replicated()
    }

    fn voter(&self) -> Option<&dyn Voter> {
        self.inner.voter()
    }
}

impl Admin for FaultyBackend {
    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        self.send()?;
        self.inner
            .require_admin(NO_SEMAPHORES)?
            .change_permits(name, change, by)
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.send()?;
        self.inner
            .require_admin(NO_FORCED_RELEASE)?
            .force_release(name, by)
    }
}
