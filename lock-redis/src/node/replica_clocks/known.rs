//! [`KnownClocks`]: the consequences of the replicas' clocks for a policy and a lease.

use super::ServerClock;
use crate::connection::{Address, NeededReplicas};
use lock_core::{LeaseTime, OnInsufficientReplicas, Replicas, Replication};
use std::time::Duration;

/// The part of a lease by which a replica's clock may be ahead so that its confirmation still
/// counts. Renewals start after a third of the lease, so the end of a newly confirmed lease on such
/// a replica is not earlier than the end of the lease that was confirmed before.
pub(in crate::node) const PART_OF_LEASE: u32 = 3;

/// A replica, and its clock compared with its master's; without the clock if it could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReplicaClock {
    pub(crate) address: Address,
    pub(crate) lead: Option<ServerClock>,
}

impl ReplicaClock {
    /// Returns whether the clock is certainly too far ahead for this lease.
    fn is_ahead(&self, lease: LeaseTime) -> bool {
        self.lead
            .is_some_and(|lead| lead.at_least() > lease.duration() / PART_OF_LEASE)
    }

    fn may_lead_by(&self) -> Duration {
        self.lead.map_or(Duration::ZERO, |lead| lead.at_most())
    }
}

/// The replicas of a master, as they were listed last.
#[derive(Default, Debug)]
pub(super) struct KnownClocks(Vec<ReplicaClock>);

impl KnownClocks {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Replaces the replicas. A replica whose clock could not be read keeps its previous clock.
    /// Returns the replicas, and whether a clock may be further ahead than was known.
    pub(super) fn update(&mut self, found: Vec<ReplicaClock>) -> (Vec<ReplicaClock>, bool) {
        let before = std::mem::replace(&mut self.0, found);
        let mut has_grown = false;
        for clock in &mut self.0 {
            let known = before.iter().find(|known| known.address == clock.address);
            clock.lead = clock.lead.or(known.and_then(|known| known.lead));
            let led_by = known.map_or(Duration::ZERO, ReplicaClock::may_lead_by);
            has_grown |= clock.may_lead_by() > led_by;
        }
        (self.0.clone(), has_grown)
    }

    fn ahead(&self, lease: LeaseTime) -> u32 {
        let count = self.0.iter().filter(|clock| clock.is_ahead(lease)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns how many replicas must confirm a request for this lease, if the policy requires
    /// `count`.
    ///
    /// `WAIT` returns the number of confirming replicas, but not which they are. So for each
    /// replica whose clock is too far ahead, one more must confirm, if there are that many. If
    /// there is such a replica, a policy that requires all replicas cannot be met.
    pub(super) fn needed(
        &self,
        count: u32,
        lease: LeaseTime,
        replication: Replication,
    ) -> NeededReplicas {
        let ahead = self.ahead(lease);
        let there_are = match replication.count() {
            Replicas::All => count,
            _ => u32::try_from(self.0.len()).unwrap_or(u32::MAX).max(count),
        };
        let awaited = count.saturating_add(ahead).min(there_are);
        NeededReplicas {
            count,
            ahead,
            awaited,
        }
    }

    /// Returns by how much earlier than on the master a lease may end on a replica whose
    /// confirmation counts. If too few replicas count, those that are too far ahead are included,
    /// because they may have confirmed an earlier lease. They are left out if the policy accepts
    /// grants or keeps renewals that too few replicas confirm.
    pub(super) fn lead(&self, lease: LeaseTime, replication: Replication) -> Duration {
        let is_short = match replication.count() {
            Replicas::AtLeast(count) => {
                (self.0.len() as u64) < u64::from(count) + u64::from(self.ahead(lease))
            }
            _ => true,
        };
        let accepts = replication.insufficient() == OnInsufficientReplicas::Accept
            || replication.keeps_unconfirmed_renewals();
        let counts = |clock: &&ReplicaClock| (is_short && !accepts) || !clock.is_ahead(lease);
        let leads = self.0.iter().filter(counts).map(ReplicaClock::may_lead_by);
        leads.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns replicas that are so many seconds ahead, give or take 100 ms.
    fn replicas(ahead: &[Option<i64>]) -> Vec<ReplicaClock> {
        let clock = |(port, ahead): (u16, &Option<i64>)| ReplicaClock {
            address: Address::new("h", port),
            lead: ahead.map(|seconds| ServerClock {
                ahead: seconds * 1_000_000,
                uncertainty: SECOND / 10,
            }),
        };
        (1..).zip(ahead).map(clock).collect()
    }

    fn lease(seconds: u32) -> LeaseTime {
        LeaseTime::new(SECOND * seconds).unwrap()
    }

    #[test]
    fn replica_too_far_ahead_does_not_count() {
        let (one, two, all) = (
            Replication::replicas(1),
            Replication::replicas(2),
            Replication::all(),
        );
        let accept =
            |policy: Replication| policy.on_insufficient_replicas(OnInsufficientReplicas::Accept);
        let tenths = |tenths| SECOND / 10 * tenths;
        // The columns: the replicas, the policy, the number that the policy requires; ahead and
        // awaited; the lead.
        for (ahead, policy, count, needed, lead) in [
            (&[Some(0)][..], one, 1, (0, 1), tenths(1)),
            (&[Some(-40)], one, 1, (0, 1), tenths(0)),
            (&[None], all, 1, (0, 1), tenths(0)),
            (&[], one, 1, (0, 1), tenths(0)),
            (&[Some(5), Some(2)], all, 2, (0, 2), tenths(51)),
            // At most 10.1 s and at least 9.9 s ahead: not certainly more than a third of the
            // lease.
            (&[Some(10)], one, 1, (0, 1), tenths(101)),
            (&[Some(40)], one, 1, (1, 1), tenths(401)),
            (&[Some(40), Some(5)], one, 1, (1, 2), tenths(51)),
            (&[Some(40), Some(5)], two, 2, (1, 2), tenths(401)),
            (&[Some(40), Some(5), Some(0)], two, 2, (1, 3), tenths(51)),
            (&[Some(40), Some(5)], all, 2, (1, 2), tenths(401)),
            (&[Some(40), Some(5)], accept(all), 2, (1, 2), tenths(51)),
            (
                &[Some(40)],
                one.keep_unconfirmed_renewals(true),
                1,
                (1, 1),
                tenths(0),
            ),
        ] {
            let known = KnownClocks(replicas(ahead));
            let is = known.needed(count, lease(30), policy);
            assert_eq!((is.ahead, is.awaited), needed, "{ahead:?} {policy:?}");
            assert_eq!(known.lead(lease(30), policy), lead, "{ahead:?} {policy:?}");
        }
        let known = KnownClocks(replicas(&[Some(40)]));
        assert_eq!(
            known.needed(1, lease(200), one).ahead,
            0,
            "a third of it is longer"
        );
    }

    #[test]
    fn replica_that_is_silent_keeps_its_clock_and_one_that_left_has_none() {
        let mut known = KnownClocks::default();
        let mut update = |ahead: &[Option<i64>]| {
            let (clocks, has_grown) = known.update(replicas(ahead));
            (
                clocks
                    .iter()
                    .map(|it| it.lead.map(|it| it.ahead / 1_000_000))
                    .collect::<Vec<_>>(),
                has_grown,
            )
        };
        assert_eq!(update(&[None]), (vec![None], false));
        assert_eq!(update(&[Some(5)]), (vec![Some(5)], true));
        assert_eq!(update(&[None, Some(-1)]), (vec![Some(5), Some(-1)], false));
        assert_eq!(update(&[Some(6)]), (vec![Some(6)], true));
        assert_eq!(update(&[Some(2)]), (vec![Some(2)], false));
        assert_eq!(update(&[]), (vec![], false));
        assert_eq!(update(&[None]), (vec![None], false));
    }
}
