//! [`NodeQueue`]: the queued work of one task on one node, and the order of the work.

use super::RenewalJob;
use super::pending_cleanups::PendingCleanup;
use super::renewal_time::RenewalTime;
use super::spare_workers::{Next, SpareWorkers, WorkerId};
use crate::backend::{AcquisitionId, NodeId, PERMITS_PER_RENEWAL, RENEW_BATCH, ReleaseOptions};
use crate::sync::Mutex;
use crate::threads::on_demand::OnDemandThread;
use crate::time::backoff::Backoff;
use crate::time::{Moment, Signal};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The time for which a worker's thread waits for work before it ends, so that an idle client has
/// no threads.
const IDLE: Duration = Duration::from_secs(30);

/// The queued work of one task on one node: renewals of one class, or cleanups.
pub(super) struct NodeQueue {
    pub(super) node: NodeId,
    pub(super) work: Mutex<Work>,
    /// The signal of the main worker.
    pub(super) signal: Arc<Signal>,
    /// The signal of the spare worker on standby; there is at most one.
    pub(super) spare: Arc<Signal>,
    /// The recent duration of renewals, shared by the queues of this node whose renewals equally
    /// many replicas must confirm.
    pub(super) time: Arc<RenewalTime>,
}

#[derive(Default)]
pub(super) struct Work {
    pub(super) renewals: VecDeque<RenewalJob>,
    pub(super) cleanups: Cleanups,
    pub(super) thread: OnDemandThread,
    pub(super) spares: SpareWorkers,
}

/// A release that is repeated until the store has confirmed or refused it, or the lease has ended:
/// of an acquisition, of an attempt with unknown outcome, or of a waiter in the store's queue.
pub(super) struct Cleanup {
    pub(super) acquisition: AcquisitionId,
    pub(super) options: ReleaseOptions,
    /// The time at which the cleanup was queued: the minimum hold in `options` is measured from
    /// this time.
    pub(super) since: Moment,
    /// The time at which the lease has ended in any case.
    pub(super) until: Moment,
    pub(super) next: Moment,
    pub(super) backoff: Backoff,
    /// The entry in the count of pending cleanups; `None` once the last repetition, at the end of
    /// the client, has failed.
    pub(super) pending: Option<PendingCleanup>,
}

/// Cleanups ordered by due time, because there may be very many after an outage.
#[derive(Default)]
pub(super) struct Cleanups {
    by_due: BTreeMap<(Moment, u64), Cleanup>,
    last_number: u64,
}

impl Cleanups {
    pub(super) fn push(&mut self, cleanup: Cleanup) {
        self.last_number += 1;
        self.by_due
            .insert((cleanup.next, self.last_number), cleanup);
    }

    /// Returns when the next cleanup is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.by_due.first_key_value().map(|((due, _), _)| *due)
    }

    /// Removes the cleanup that has been due the longest.
    fn take_due(&mut self, now: Moment) -> Option<Cleanup> {
        let first = self.by_due.first_entry().filter(|it| it.key().0 <= now)?;
        Some(first.remove())
    }

    /// Makes all cleanups due at once.
    fn make_due(&mut self, now: Moment) {
        for (_, cleanup) in std::mem::take(&mut self.by_due) {
            self.push(Cleanup {
                next: now,
                ..cleanup
            });
        }
    }
}

/// The next action of a worker.
pub(super) enum Step {
    Renew(Vec<RenewalJob>),
    CleanUp(Cleanup),
    Sleep(Moment),
    End,
}

impl NodeQueue {
    pub(super) fn new(node: NodeId, time: Arc<RenewalTime>) -> Self {
        Self {
            node,
            work: Mutex::default(),
            signal: Arc::default(),
            spare: Arc::default(),
            time,
        }
    }

    /// Makes all queued cleanups due at once.
    pub(super) fn retry_cleanups_now(&self, now: Moment) {
        self.work.lock().cleanups.make_due(now);
        self.signal.raise();
        self.spare.raise();
    }

    /// Returns the signal that wakes this worker.
    pub(super) fn signal_of(&self, worker: WorkerId) -> &Arc<Signal> {
        if worker == WorkerId::MAIN {
            &self.signal
        } else {
            &self.spare
        }
    }

    /// Returns the next action of this worker. A spare worker is on standby while the main worker
    /// sends, and sends the next batch if all sending workers hang.
    pub(super) fn next_step(&self, worker: WorkerId, now: Moment, stopping: bool) -> Step {
        let mut work = self.work.lock();
        if worker != WorkerId::MAIN {
            let has_work = !work.renewals.is_empty();
            return match work.spares.next(worker, has_work, now, stopping) {
                Next::Take => Step::Renew(work.take_batch(worker, now)),
                Next::StandBy(until) => Step::Sleep(until),
                Next::Leave => Step::End,
            };
        }
        // Record the main worker's return under the mutex under which it takes its next batch, so
        // that no spare worker takes that batch in between.
        if work.spares.main_is_back(now) {
            self.spare.raise();
        }
        if !work.renewals.is_empty() {
            work.thread.busy();
            return Step::Renew(work.take_batch(worker, now));
        }
        if let Some(cleanup) = work.cleanups.take_due(now) {
            work.thread.busy();
            return Step::CleanUp(cleanup);
        }
        if let Some(next) = work.cleanups.next() {
            return Step::Sleep(next);
        }
        let idle = if stopping { Duration::ZERO } else { IDLE };
        work.thread.idle(now, idle).map_or(Step::End, Step::Sleep)
    }
}

/// Returns the job's weight in a batch, in acquisitions: many permits weigh more than one.
fn weight(job: &RenewalJob) -> usize {
    let permits = job.acquisition.name.permits();
    permits.map_or(1, |(_, count)| {
        count.div_ceil(PERMITS_PER_RENEWAL).max(1) as usize
    })
}

impl Work {
    fn take_batch(&mut self, worker: WorkerId, now: Moment) -> Vec<RenewalJob> {
        self.spares.sends(worker, now);
        let mut room = RENEW_BATCH.saturating_sub(self.renewals.front().map_or(0, weight));
        let fits = |job: &&RenewalJob| {
            let left = room.checked_sub(weight(job));
            left.inspect(|left| room = *left).is_some()
        };
        let others = self.renewals.iter().skip(1).take_while(fits).count();
        self.renewals
            .drain(..self.renewals.len().min(1 + others))
            .collect()
    }
}
