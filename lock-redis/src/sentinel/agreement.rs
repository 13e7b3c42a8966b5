//! [`Agreement`]: what the sentinels say together.

use super::report::MasterReport;
use crate::connection::Address;
use lock_core::Moment;
use std::collections::{HashMap, HashSet};

/// What they say together.
#[derive(Clone, Debug)]
pub(super) struct Agreement {
    pub(super) master: Address,
    pub(super) epoch: u64,
    /// The `run_id` of the master, as most of them say that say it.
    pub(super) run_id: Option<String>,
    /// Whether more than half of all known sentinels say so.
    pub(super) by_majority: bool,
    /// Whether they are of another deployment than those before, which are gone.
    pub(super) are_others: bool,
    /// Whether the server itself showed that it was a replica of the known master.
    pub(super) is_proven: bool,
    /// How many replicas may be promoted: those that at least one of the sentinels has heard and
    /// does not hold for down.
    pub(super) replicas: u32,
    /// The replicas that they know by their `run_id`; `None` where they may not be asked.
    pub(super) replica_ids: Option<Vec<(Address, String)>>,
    /// Whether one of them has yet to hear a replica.
    pub(super) has_unheard: bool,
    /// One of the sentinels that say so.
    pub(super) said_by: Address,
}

impl Agreement {
    /// What these reports say together, of which there is one at least.
    ///
    /// For a majority only those count that were asked in this round: an answer to an earlier
    /// question may be older than what another one says.
    pub(super) fn of(counted: &[&MasterReport], since: Moment, sentinels: usize) -> Self {
        let epoch = counted
            .iter()
            .map(|report| report.epoch)
            .max()
            .unwrap_or_default();
        let same = |master: &Address| {
            counted
                .iter()
                .filter(|it| it.epoch == epoch && it.master == *master)
                .count()
        };
        let of_latest = counted.iter().filter(|report| report.epoch == epoch);
        let master = of_latest
            .map(|report| report.master.clone())
            .max_by_key(|master| same(master))
            .expect("the latest is among them");
        let supporting = || {
            counted
                .iter()
                .filter(|it| it.epoch == epoch && it.master == master)
        };
        let run_id = most_frequent(supporting().filter_map(|it| it.run_id.as_deref()));
        let replicas: HashSet<_> = supporting()
            .flat_map(|report| &report.replicas)
            // The leader of the failover names the new one already, and lists it as a replica of
            // the old one.
            .filter(|replica| **replica != master)
            .collect();
        let replicas = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
        let replica_ids = supporting()
            .filter_map(|it| it.replica_ids.clone())
            .reduce(|a, b| [a, b].concat());
        let has_unheard = supporting().any(|report| report.has_unheard);
        let said_by = supporting()
            .map(|report| report.account.asked_at.clone())
            .next();
        let said_by = said_by.expect("the latest is among them");
        let supporters = supporting().filter(|report| report.asked >= since).count();
        let by_majority = supporters * 2 > sentinels;
        let run_id = run_id.map(str::to_owned);
        let (are_others, is_proven) = (false, false);
        Self {
            master,
            epoch,
            run_id,
            by_majority,
            are_others,
            is_proven,
            replicas,
            replica_ids,
            has_unheard,
            said_by,
        }
    }
}

/// What most of them are; `None` if no one is more frequent than all others.
fn most_frequent<'a>(all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut counts = HashMap::<_, usize>::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    let most = counts.values().copied().max()?;
    let mut first = counts.into_iter().filter(|(_, count)| *count == most);
    first
        .next()
        .filter(|_| first.next().is_none())
        .map(|(one, _)| one)
}
