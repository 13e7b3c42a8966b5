//! [`RenewalTime`]: how long a batch of renewals may take, and which renewals share a batch.

use super::RenewalJob;
use crate::sync::Mutex;
use std::time::Duration;

/// The shortest timeout of a batch of renewals, because a busy machine or a far server needs it
/// however short the lease is. Otherwise it is a third of the lease, so that a second try fits, at
/// least twice the time of the last batch and at most `command_timeout`.
const SHORTEST_RENEWAL: Duration = Duration::from_millis(50);

/// Renewals that may take about as long. Only they share a batch and the workers of a node: a short
/// lease neither cuts the time of a long one nor waits for its request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum TimeClass {
    /// A command timeout, and so many milliseconds for replicas.
    Whole(u32),
    /// A third of the lease, which is less: its milliseconds have so many binary digits.
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

/// A third of the lease: a second try fits into what is left.
fn third(job: &RenewalJob) -> Duration {
    (job.lease.duration() / 3).max(SHORTEST_RENEWAL)
}

/// What the renewals on a node took lately, with the dials that they needed.
#[derive(Default)]
pub(super) struct RenewalTime(Mutex<Duration>);

impl RenewalTime {
    /// How long this batch, of one class, may take: what its leases can bear, but twice what a
    /// renewal took lately, and at most the command timeout.
    ///
    /// On a far server a third of a short lease is less than a round trip: each request would be
    /// given up, with its connection, and the next could only be given up again.
    pub(super) fn time_for(&self, batch: &[RenewalJob], command_timeout: Duration) -> Duration {
        let recent = *self.0.lock();
        let one = |job: &RenewalJob| {
            let most = command_timeout + job.acquisition.replication.patience();
            third(job).max(recent * 2).min(most)
        };
        batch.iter().map(one).min().unwrap_or(command_timeout)
    }

    /// A renewal took so long. One that took longer is remembered for a while.
    pub(super) fn succeeded(&self, took: Duration) {
        let mut recent = self.0.lock();
        *recent = took.max(*recent / 2);
    }

    /// A renewal failed after so long: it may have needed longer.
    pub(super) fn failed(&self, after: Duration) {
        let mut recent = self.0.lock();
        *recent = after.max(*recent);
    }
}
