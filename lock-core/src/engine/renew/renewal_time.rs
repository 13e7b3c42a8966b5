//! [`RenewalTime`]: the time limit of a batch of renewals. [`TimeClass`]: the renewals that share a
//! batch.

use super::RenewalJob;
use crate::sync::Mutex;
use std::time::Duration;

/// The shortest timeout of a batch of renewals, because a busy machine or a far server needs this
/// time however short the lease is. Otherwise the timeout is a third of the lease, and at most half
/// of the remaining validity if the lock has not had its full lease yet, so that a second attempt
/// is possible. If twice the recent duration of a renewal is longer, the timeout is that. It is at
/// most `command_timeout`, plus the time for replicas.
const SHORTEST_RENEWAL: Duration = Duration::from_millis(50);

/// A class of renewals with similar time limits. Each batch, and each worker, has a single class,
/// so a renewal of a short lease does not shorten the time limit of a renewal of a long lease, and
/// does not wait for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum TimeClass {
    /// A whole command timeout, plus this many milliseconds for replicas.
    Whole(u32),
    /// The result of [`third`], if it is shorter than a command timeout plus the time for replicas.
    /// The number is the binary logarithm of the result in milliseconds.
    Third(u32),
}

impl TimeClass {
    pub(super) fn of(job: &RenewalJob, command_timeout: Duration) -> Self {
        let patience = job.acquisition.replication.patience();
        let (third, most) = (third(job), command_timeout + patience);
        if third >= most {
            Self::Whole(u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))
        } else {
            Self::Third(third.as_millis().checked_ilog2().unwrap_or(0))
        }
    }
}

/// Returns a third of the lease, and at most half of the remaining validity if the lock has not had
/// its full lease yet, so that a second attempt is possible; at least [`SHORTEST_RENEWAL`].
fn third(job: &RenewalJob) -> Duration {
    let third = job.lease.duration() / 3;
    let half = job.left.map_or(third, |left| left / 2);
    third.min(half).max(SHORTEST_RENEWAL)
}

/// The recent duration of renewals on a node, including the time to open connections.
#[derive(Default)]
pub(super) struct RenewalTime(Mutex<Duration>);

impl RenewalTime {
    /// Returns the time limit of this batch of one class: the shortest [`third`], or twice the
    /// recent duration of a renewal if that is longer, and at most the command timeout plus the
    /// time for replicas.
    ///
    /// With a far server, a third of a short lease may be less than a round trip. Without the
    /// recent duration, each request would then time out and close its connection, and no renewal
    /// would succeed.
    pub(super) fn time_for(&self, batch: &[RenewalJob], command_timeout: Duration) -> Duration {
        let recent = *self.0.lock();
        let one = |job: &RenewalJob| {
            let most = command_timeout + job.acquisition.replication.patience();
            third(job).max(recent * 2).min(most)
        };
        batch.iter().map(one).min().unwrap_or(command_timeout)
    }

    /// Records the duration of a successful renewal. A longer recent duration is only halved.
    pub(super) fn succeeded(&self, took: Duration) {
        let mut recent = self.0.lock();
        *recent = took.max(*recent / 2);
    }

    /// Records that a renewal failed after this time: a success may need longer.
    pub(super) fn failed(&self, after: Duration) {
        let mut recent = self.0.lock();
        *recent = after.max(*recent);
    }
}
