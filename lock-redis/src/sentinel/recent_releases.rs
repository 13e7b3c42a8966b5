//! [`RecentReleases`]: what was given back lately, for a master that has not heard of it.
//!
//! A replica that is promoted while the old master is well hears of nothing from then on, and
//! clients go on giving locks back on the old one until they are told: for seconds, at a failover
//! on demand. On the new master these locks have a holder that will never give them back, and no
//! other client could take them until the lease ends. So the client that gave them back does it
//! there once more. An owner that was closed is never used again: at worst it is for nothing.

use lock_core::Moment;
use lock_core::backend::{AcquisitionId, Receipt};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// The time for which a release is remembered for a new master, because a promotion takes less time
/// to reach the clients.
const KEPT: Duration = Duration::from_secs(10);

/// The most that is remembered, the latest ones.
const MOST: usize = 4_096;

/// What was given back, and when, in that order.
#[derive(Default)]
pub(super) struct RecentReleases(Mutex<VecDeque<(Moment, AcquisitionId)>>);

impl RecentReleases {
    /// This was given back, by the word of a master.
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

    /// What was given back lately.
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
