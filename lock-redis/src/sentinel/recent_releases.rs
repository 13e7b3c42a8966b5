//! [`RecentReleases`]: the recent releases, for a new master that does not have them.
//!
//! A replica that is promoted while the old master still runs no longer receives the old master's
//! writes. Until clients learn of the new master, they continue to release locks on the old one:
//! for seconds, at a manual failover. On the new master these locks still have their holders, and
//! no other client could acquire them until their leases end. So the client that released them
//! repeats the releases there. An owner is never used again after its release, so a needless
//! repetition does no harm.

use lock_core::Moment;
use lock_core::backend::{AcquisitionId, Receipt};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// The time for which a release is remembered for a new master, because clients learn of a
/// promotion in less time.
const KEPT: Duration = Duration::from_secs(10);

/// The most releases that are remembered; the oldest are forgotten first.
const MOST: usize = 4_096;

/// The released acquisitions with their times, oldest first.
#[derive(Default)]
pub(super) struct RecentReleases(Mutex<VecDeque<(Moment, AcquisitionId)>>);

impl RecentReleases {
    /// Records a release that a master has confirmed.
    pub(super) fn note(&self, acquisition: &AcquisitionId, now: Moment) {
        let AcquisitionId {
            name, owner, lease, ..
        } = acquisition;
        let acquisition = AcquisitionId::new(name.clone(), *owner, *lease, Receipt::default());
        let mut lately = self.0.lock();
        while lately.len() >= MOST || lately.front().is_some_and(|(at, _)| is_over(*at, now)) {
            lately.pop_front();
        }
        lately.push_back((now, acquisition));
    }

    /// Returns the recent releases.
    pub(super) fn lately(&self, now: Moment) -> Vec<AcquisitionId> {
        let lately = self.0.lock();
        let lately = lately.iter().filter(|(at, _)| !is_over(*at, now));
        lately.map(|(_, acquisition)| acquisition.clone()).collect()
    }
}

fn is_over(at: Moment, now: Moment) -> bool {
    now.since(at) > KEPT
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ClientId, LeaseTime, LockName, OwnerId};

    #[test]
    fn recent_releases_are_kept_briefly_and_in_bounded_number() {
        let client = ClientId::random();
        let lease = LeaseTime::new(Duration::from_secs(30)).unwrap();
        let acquisition = |number: u64| {
            let name = LockName::new("a").unwrap();
            AcquisitionId::new(
                name,
                OwnerId::new(client, number),
                lease,
                Receipt::default(),
            )
        };
        let at = |seconds| Moment::from_nanos(0) + Duration::from_secs(seconds);
        let freed = RecentReleases::default();
        freed.note(&acquisition(1), at(1));
        freed.note(&acquisition(2), at(8));
        let numbers = |now| {
            freed
                .lately(now)
                .iter()
                .map(|it| it.owner)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            numbers(at(11)),
            [acquisition(1).owner, acquisition(2).owner]
        );
        assert_eq!(numbers(at(12)), [acquisition(2).owner]);
        assert_eq!(numbers(at(19)), []);
        for number in 3..10_000 {
            freed.note(&acquisition(number), at(20));
        }
        assert_eq!(numbers(at(20)).len(), MOST);
        assert_eq!(
            freed.lately(at(20))[MOST - 1].owner,
            acquisition(9_999).owner
        );
    }
}
