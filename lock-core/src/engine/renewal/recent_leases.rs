//! [`RecentLeases`]: how long a batch of renewals may take.

use super::RenewalJob;
use crate::clock::Moment;
use crate::lease::LeaseTime;
use std::collections::HashMap;
use std::time::Duration;

/// The shortest time that a batch of renewals is given, however short the leases are.
const SHORTEST_RENEWAL: Duration = Duration::from_millis(50);

/// The leases that a node renewed lately, and when.
///
/// A node has few calls under way. Where none is answered they keep the others waiting, and must
/// not do so for longer than the shortest lease among them can bear.
#[derive(Default)]
pub(super) struct RecentLeases(HashMap<LeaseTime, Moment>);

impl RecentLeases {
    /// How long this batch may take: a third of the shortest lease in use, and at most `most`.
    pub(super) fn time_for(
        &mut self,
        batch: &[RenewalJob],
        now: Moment,
        most: Duration,
    ) -> Duration {
        let time = |lease: LeaseTime| (lease.duration() / 3).max(SHORTEST_RENEWAL);
        // What was not renewed for as long as it lasts is not held any more.
        self.0.retain(|lease, last| now.since(*last) < lease.duration());
        let leases = batch.iter().map(|job| job.lease);
        self.0.extend(leases.filter(|lease| time(*lease) < most).map(|lease| (lease, now)));
        self.0.keys().map(|lease| time(*lease)).min().unwrap_or(most)
    }
}
