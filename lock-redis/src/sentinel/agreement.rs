//! [`Agreement`]: the master that the sentinels' answers together name.

use super::report::MasterReport;
use crate::connection::Address;
use lock_core::Moment;
use std::collections::{HashMap, HashSet};

/// The master that the sentinels name together, and its replicas.
#[derive(Clone, Debug)]
pub(super) struct Agreement {
    pub(super) master: Address,
    pub(super) epoch: u64,
    /// The most frequent `run_id` in the reports on this master; `None` if there is none, or if two
    /// are equally frequent.
    pub(super) run_id: Option<String>,
    /// True if more than half of all known sentinels have named this master since the start of the
    /// round, or if [`are_others`](Self::are_others) is true.
    pub(super) by_majority: bool,
    /// True if the sentinels are of another deployment than those before, which no longer answer.
    pub(super) are_others: bool,
    /// True if the named server showed by the history of its data that it was a replica of the
    /// known master or, if that master never answered, of the former one.
    pub(super) is_proven: bool,
    /// The number of replicas that may be promoted: those that at least one sentinel has reached
    /// and does not consider down. Only the reports that name this master are used.
    pub(super) replicas: u32,
    /// The replicas with a known `run_id`; `None` if the sentinels may not be queried for replicas.
    pub(super) replica_ids: Option<Vec<(Address, String)>>,
    /// True if one of these sentinels lists a replica that it has not reached yet, and does not
    /// consider down.
    pub(super) has_unheard: bool,
    /// One of the sentinels that name this master.
    pub(super) said_by: Address,
}

impl Agreement {
    /// Returns the agreement of these reports, of which there is at least one.
    ///
    /// Only reports that were requested at `since`, the start of the round, or later count for a
    /// majority: an answer to an earlier query may be older than another sentinel's report.
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
            // During a failover, the sentinel that leads it already names the new master, but still
            // lists that server as a replica.
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

/// Returns the most frequent value; `None` if there is none, or if two are equally frequent.
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
