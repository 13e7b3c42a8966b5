//! The nodes that are queried for the slot map, and the choice of the reply that replaces the map.
//!
//! Of two masters, the one with the larger epoch has newer information. A replica's epoch proves
//! less: a replica that is cut off from the others increases its epoch with each election that it
//! loses. So a replica's reply is chosen only if no master's reply is as new as the map. A map that
//! came from a replica is replaced as soon as most of its masters have replied, whatever their
//! epochs.

use super::survey::{HostAddresses, Source, Survey, SurveyReply};
use super::{Channels, ClusterMap};
use crate::cluster::slot_map::{ClusterNode, listed};
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use lock_redis::servers::{Account, Address, Deployment, Shards};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The longest time from the end of one survey to the start of the next for the two to be
/// consecutive: twice the interval of refreshes of a cluster in use, so that a delay on a busy
/// machine does not separate them.
const IN_A_ROW: Duration = Duration::from_secs(10);

/// The replies of known nodes to a survey, and the last failure of a node.
#[derive(Default)]
struct Evidence {
    replies: Vec<Shards>,
    trouble: Option<Failure>,
}

impl Evidence {
    /// Returns the newest reply of a master.
    fn by_master(&self) -> Option<&Shards> {
        let masters = self.replies.iter().filter(|told| told.is_of_master());
        masters.max_by_key(|told| told.epoch)
    }

    /// Returns the newest reply of a master or replica that reports the cluster as up.
    fn by_any(&self) -> Option<&Shards> {
        self.replies
            .iter()
            .filter(|told| told.is_up)
            .max_by_key(|told| told.epoch)
    }
}

impl ClusterMap {
    /// Queries the known nodes, and replaces the map by the reply that [`newest`](Self::newest)
    /// chooses, if any. Queries the configured addresses instead if no map is known, or if no known
    /// node has answered for a lease and all leases of this client are over. This lease is measured
    /// from the end of the first of the consecutive surveys without an answer: until then, other
    /// clients may have renewed their locks.
    pub(super) fn refresh(&self) -> Result<(), Failure> {
        if !self.is_known() {
            let told = self.ask_configured(Deployment::is_majority_of_known)?;
            return self.take_over(&told);
        }
        let begun = self.clock.now();
        let evidence = self.ask_known();
        if evidence.replies.is_empty() {
            let now = self.clock.now();
            let is_gone = self.silence(begun, now) >= self.factory.settings.lease();
            if is_gone && self.granted.are_over(now) {
                return self.adopt_new_cluster();
            }
            return Err(evidence.trouble.unwrap_or_else(no_slots));
        }
        *self.silence.lock() = None;
        match self.newest(&evidence) {
            Some(told) => self.take_over(told),
            None => evidence.trouble.map_or(Ok(()), Err),
        }
    }

    /// Records a survey without an answer, and returns the time since the end of the first of the
    /// consecutive surveys without an answer. Surveys more than [`IN_A_ROW`] apart are not
    /// consecutive: between two surveys of an idle client, known nodes may have answered other
    /// clients.
    pub(super) fn silence(&self, begun: Moment, now: Moment) -> Duration {
        let mut silence = self.silence.lock();
        let first = match *silence {
            Some((first, last)) if begun.since(last) < IN_A_ROW => first,
            _ => now,
        };
        *silence = Some((first, now));
        now.since(first)
    }

    /// Returns the reply that replaces the map; `None` if no reply may replace it.
    fn newest<'a>(&self, evidence: &'a Evidence) -> Option<&'a Shards> {
        if let Some(told) = self.conclusive(evidence) {
            return Some(told);
        }
        // If all known nodes have answered, no larger epoch is to be expected, so a reply with a
        // smaller epoch than the map's may be chosen, too.
        let epoch = self.map.read().epoch();
        let counts = |told: &&Shards| told.epoch >= epoch || evidence.trouble.is_none();
        evidence
            .by_any()
            .filter(counts)
            .or_else(|| evidence.by_master().filter(counts))
    }

    /// Returns the reply of a master if no further replies are needed: if it is as new as the map,
    /// or the map came from a replica and most of the masters in the map have replied.
    fn conclusive<'a>(&self, evidence: &'a Evidence) -> Option<&'a Shards> {
        let (map, told) = (self.map.read(), evidence.by_master()?);
        let repliers = evidence.replies.iter().map(|told| told.id.as_str());
        (told.epoch >= map.epoch() || map.is_outvoted_by(repliers)).then_some(told)
    }

    /// Queries known nodes and addresses of the URL, until there is a conclusive reply or all have
    /// been queried.
    fn ask_known(&self) -> Evidence {
        let mut evidence = Evidence::default();
        let mut survey = Survey::new(self, self.sources(), Moment::NEVER);
        loop {
            let replies = survey.next();
            if replies.is_empty() {
                return evidence;
            }
            for SurveyReply { node, outcome } in replies {
                let told = outcome.and_then(|told| {
                    let is_ours = self.map.read().is_of(&told.account(node.address.clone()));
                    // A node that has not joined a cluster yet lists no slots.
                    if is_ours || told.shards.is_empty() {
                        Ok(told)
                    } else {
                        Err(self.foreign_node(&node, &told.id))
                    }
                });
                node.set_suspect(told.is_err());
                match told {
                    Ok(told) if told.shards.is_empty() => {}
                    Ok(told) => evidence.replies.push(told),
                    Err(failure) => evidence.trouble = Some(failure),
                }
                if self.conclusive(&evidence).is_some() {
                    return evidence;
                }
                survey.ask_next();
            }
        }
    }

    /// Returns the failure for a reply of another cluster's node, and reports that node once.
    fn foreign_node(&self, node: &ClusterNode, id: &str) -> Failure {
        let (address, known) = (&node.address, self.map.read().ids());
        if self
            .reported
            .lock()
            .insert((id.to_owned(), address.clone()))
        {
            let notices = self.factory.settings.notices();
            notices.server_refused(&address.to_string(), &format!("one of {known}"), id);
        }
        Failure::NotSent(Error::unavailable(format!(
            "another cluster's node answers at {address}: {id}, which none of the known nodes \
             ({known}) lists"
        )))
    }

    /// Replaces the known cluster, which counts as gone because no known node has answered for a
    /// lease. The known cluster may be merely unreachable, so a configured address that does not
    /// answer is a vote against any other cluster.
    fn adopt_new_cluster(&self) -> Result<(), Failure> {
        let was = self.map.read().ids();
        let told = self.ask_configured(Deployment::is_majority)?;
        let is = listed(told.nodes.iter().map(|(id, _)| id.as_str()));
        self.take_over(&told)?;
        let notices = self.factory.settings.notices();
        notices.server_changed(&format!("the cluster at {}", self.configured()), &was, &is);
        Ok(())
    }

    fn configured(&self) -> String {
        self.seeds
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns the reply of the cluster that most configured addresses lead to. Stops as soon as
    /// further replies cannot change the result.
    fn ask_configured(&self, is_majority: fn(&Deployment) -> bool) -> Result<Shards, Failure> {
        let (mut told, mut accounts, mut trouble) = (Vec::new(), Vec::new(), None);
        let mut seeds = self.seeds.clone();
        fastrand::shuffle(&mut seeds);
        let sources = seeds.into_iter().map(Source::Configured).collect();
        let mut survey = Survey::new(self, sources, Moment::NEVER);
        loop {
            let replies = survey.next();
            let is_last = replies.is_empty();
            for SurveyReply { node, outcome } in replies {
                match outcome {
                    Ok(shards) if shards.shards.is_empty() => {}
                    Ok(shards) => {
                        accounts.push(shards.account(node.address.clone()));
                        told.push(shards);
                    }
                    Err(failure) => trouble = Some(failure),
                }
                survey.ask_next();
            }
            let hosts = survey.hosts.lock();
            let named: Vec<_> = accounts
                .iter()
                .map(|it| self.with_seeds(it, &hosts))
                .collect();
            drop(hosts);
            let found = Deployment::all(&self.seeds, &named);
            let first = found.first().map(|first| {
                let newest = newest_of(first.accounts.iter().map(|place| &told[*place]));
                (first, newest)
            });
            match first {
                Some((first, newest)) if is_last && is_majority(first) => {
                    return Ok(newest.clone());
                }
                Some((first, newest)) if !is_last && is_enough(first, newest, &told) => {
                    return Ok(newest.clone());
                }
                _ if !is_last => {}
                Some(_) => return Err(self.undecided(&accounts)),
                None => return Err(trouble.unwrap_or_else(no_slots)),
            }
        }
    }

    /// Adds to the addresses of each listed node the addresses in the URL that lead to the node.
    fn with_seeds(&self, account: &Account, hosts: &HostAddresses) -> Account {
        let real = |address: &Address| self.factory.addresses.real(address);
        let leads_to = |seed: &Address, announced: &Address| {
            let (to, node) = (real(seed), real(announced));
            let addresses = hosts.get(&seed.host).map_or(&[][..], Vec::as_slice);
            let is_host = || {
                node.host
                    .parse::<IpAddr>()
                    .is_ok_and(|ip| addresses.contains(&ip))
            };
            to.port == node.port && (to.host == node.host || is_host())
        };
        let seeds = |(id, announced): &(String, Address)| {
            let seeds = self.seeds.iter().filter(|seed| leads_to(seed, announced));
            seeds
                .map(|seed| (id.clone(), seed.clone()))
                .collect::<Vec<_>>()
        };
        let found: Vec<_> = account.listed.iter().flat_map(seeds).collect();
        Account {
            listed: [account.listed.clone(), found].concat(),
            ..account.clone()
        }
    }

    /// Returns the failure if no cluster has most of the configured addresses.
    fn undecided(&self, accounts: &[Account]) -> Failure {
        let each = accounts
            .iter()
            .map(|it| format!("{} is the node {}", it.asked_at, it.id));
        let each = each.collect::<Vec<_>>().join("; ");
        Failure::NotSent(Error::unavailable(format!(
            "no one cluster is known to be at most of the addresses in the URL ({}): {each}",
            self.configured()
        )))
    }

    fn take_over(&self, told: &Shards) -> Result<(), Failure> {
        self.settled.get_or_init(|| {
            self.format().use_sharded_channels(match self.channels {
                Channels::Auto => told.sharded_channels,
                Channels::Plain => false,
                Channels::Sharded => true,
            });
        });
        let left = self
            .map
            .write()
            .take_over(told, &self.factory)
            .map_err(Failure::Refused)?;
        *self.silence.lock() = None;
        self.follow();
        // Requests to removed nodes fail now, and are sent to other nodes.
        left.gone.iter().for_each(|node| node.node.retire());
        Ok(())
    }

    /// Returns the nodes to query, in order: nodes without a failure first, masters before
    /// replicas, and after each node one address of the URL.
    fn sources(&self) -> Vec<Source> {
        let known = self.known_nodes();
        let is_known = |seed: &Address| known.iter().any(|node| node.address == *seed);
        let mut seeds: Vec<_> = self.seeds.iter().filter(|seed| !is_known(seed)).collect();
        fastrand::shuffle(&mut seeds);
        let (mut known, mut seeds) = (known.iter().map(Arc::clone), seeds.into_iter().cloned());
        let mut sources = Vec::new();
        loop {
            let before = sources.len();
            sources.extend(known.next().map(Source::Known));
            sources.extend(seeds.next().map(Source::Configured));
            if sources.len() == before {
                return sources;
            }
        }
    }

    /// Returns the masters and replicas, nodes without a failure first.
    pub(super) fn known_nodes(&self) -> Vec<Arc<ClusterNode>> {
        let map = self.map.read();
        let (mut known, mut replicas) = (map.masters().to_vec(), map.replicas().to_vec());
        drop(map);
        fastrand::shuffle(&mut known);
        fastrand::shuffle(&mut replicas);
        replicas.retain(|address| !known.iter().any(|node| node.address == *address));
        known.extend(self.query_nodes(&replicas));
        known.sort_by_key(|node| node.is_suspect());
        known
    }

    /// Returns the nodes at these addresses, for queries about the slot map only. Drops such nodes
    /// at other addresses.
    fn query_nodes(&self, addresses: &[Address]) -> Vec<Arc<ClusterNode>> {
        let mut map = self.map.write();
        let mut query_nodes = self.query_nodes.lock();
        query_nodes.retain(|node| addresses.contains(&node.address));
        for address in addresses {
            let is_there = query_nodes.iter().any(|node| node.address == *address);
            // An unusable address is skipped.
            if !is_there && let Some(node) = map.query_node(address, &self.factory) {
                query_nodes.push(node);
            }
        }
        let at = |address: &Address| query_nodes.iter().find(|node| node.address == *address);
        addresses.iter().filter_map(at).map(Arc::clone).collect()
    }
}

/// Returns one of these replies of one cluster, of which there is at least one: the newest of a
/// master if most masters have replied; otherwise the newest that reports the cluster as up;
/// otherwise the newest.
fn newest_of<'a>(replies: impl Iterator<Item = &'a Shards>) -> &'a Shards {
    let replies: Vec<_> = replies.collect();
    let masters = || replies.iter().copied().filter(|told| told.is_of_master());
    let newest = masters().max_by_key(|told| told.epoch);
    newest
        .filter(|newest| masters().count() * 2 > newest.shards.len())
        .or_else(|| {
            replies
                .iter()
                .copied()
                .max_by_key(|told| (told.is_up, told.epoch))
        })
        .expect("a deployment has an account")
}

/// Returns whether the addresses that have not answered yet cannot change the result for this
/// cluster. A single reply is not enough: it may come from a node that was removed from the
/// cluster, with outdated addresses.
fn is_enough(first: &Deployment, newest: &Shards, told: &[Shards]) -> bool {
    let is_newest = |place: &usize| told[*place].epoch == newest.epoch;
    first.covered == first.configured
        && first.accounts.len() * 2 > first.configured
        && (newest.is_of_master() || first.accounts.iter().all(is_newest))
}

fn no_slots() -> Failure {
    Failure::NotSent(Error::unavailable(
        "no node that could be asked knows of any slots: was the cluster set up?",
    ))
}
