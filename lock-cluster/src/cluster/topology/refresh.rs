//! How the slot map is refreshed: which nodes are asked, and which of their replies count.

use super::{Channels, Topology};
use crate::cluster::slot_map::{ClusterNode, listed};
use lock_core::backend::{BackgroundTask, Backoff, Failure, contain, no_thread};
use lock_core::{Error, Moment, Signal};
use lock_redis::parts::{Account, Address, Deployment, Shards, deployments};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The refresh interval while the cluster is in use.
const REFRESH: Duration = Duration::from_secs(5);
/// The pauses between refreshes after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The first time-out of a node before the next one is asked; it doubles while none answers.
pub(super) const SOURCE_TIMEOUT: Duration = Duration::from_millis(250);
/// The most nodes that one refresh asks.
const MOST_ASKED: usize = 8;

/// Requests to refresh.
#[derive(Default)]
pub(crate) struct RefreshState {
    state: Mutex<RefreshProgress>,
    task: BackgroundTask,
}

#[derive(Default)]
struct RefreshProgress {
    asked: bool,
    closed: bool,
    /// The number of refreshes begun, and done.
    begun: u64,
    done: u64,
    /// The failure of the last refresh.
    trouble: Option<Failure>,
    /// The waiting threads, each with the refresh that it waits for.
    waiting: Vec<(u64, Arc<Signal>)>,
}

impl RefreshState {
    /// Requests a refresh soon.
    pub(crate) fn ask(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.asked, true) {
            drop(state);
            self.task.wake();
        }
    }

    /// Wakes the task: the cluster is in use.
    pub(super) fn wake(&self) {
        self.task.wake();
    }

    /// Ends the task, and wakes those that wait for it.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.task.wake();
    }

    #[cfg(test)]
    pub(super) fn is_asked(&self) -> bool {
        self.state.lock().asked
    }

    /// Ends the refresh that was begun last, and wakes those that wait for it.
    fn finish(&self, outcome: Result<(), Failure>) {
        let mut state = self.state.lock();
        state.done = state.begun;
        state.trouble = outcome.err();
        let done = state.done;
        // Threads that came during this refresh wait for the next one.
        let told: Vec<_> = state.waiting.extract_if(.., |(awaited, _)| *awaited <= done).collect();
        drop(state);
        told.iter().for_each(|(_, signal)| signal.raise());
    }
}

impl Topology {
    /// Requests a refresh. Waits for nothing.
    pub(crate) fn ask(&self) {
        self.refresh_state.ask();
    }

    /// Waits for the next refresh, at most until `by`.
    ///
    /// # Errors
    ///
    /// The failure of the refresh; never a time-out.
    pub(crate) fn refreshed(self: &Arc<Self>, by: Moment) -> Result<(), Failure> {
        let signal = Arc::<Signal>::default();
        let mut state = self.refresh_state.state.lock();
        let mut refresher = Refresher::new(Arc::clone(self));
        self.refresh_state.task.start(&self.clock, move || refresher.turn()).map_err(|error| {
            Failure::NotSent(no_thread("cannot start the thread that asks for the cluster", error))
        })?;
        // A refresh under way may have asked before the event that led here.
        let awaited = state.begun + 1;
        state.asked = true;
        state.waiting.push((awaited, Arc::clone(&signal)));
        drop(state);
        self.refresh_state.task.wake();
        loop {
            let mut state = self.refresh_state.state.lock();
            let is_done = state.done >= awaited;
            // A closed topology has no further refresh.
            if is_done || state.closed || self.clock.now() >= by {
                state.waiting.retain(|(_, other)| !Arc::ptr_eq(other, &signal));
                let trouble = state.trouble.clone();
                return trouble.filter(|_| is_done || !self.is_known()).map_or(Ok(()), Err);
            }
            drop(state);
            self.clock.wait(&signal, by);
        }
    }

    /// Asks one node after the other until a known node answers. If none has answered for a lease,
    /// the configured addresses are used again.
    fn refresh(&self, patience: Duration) -> Result<(), Failure> {
        if !self.is_known() {
            let told = self.ask_configured(patience)?;
            return self.take_over(&told);
        }
        let began = self.clock.now();
        let (newest, trouble) = self.ask_known(patience);
        let mut silent_since = self.silent_since.lock();
        let since = *silent_since.get_or_insert(began);
        if newest.is_some() {
            *silent_since = None;
        }
        drop(silent_since);
        let ours = self.map.read().epoch();
        match (newest, trouble) {
            // All could be asked, and none has the known epoch.
            (Some(told), None) => self.take_over(&told),
            (Some(told), Some(_)) if told.epoch >= ours => self.take_over(&told),
            (Some(_), Some(trouble)) => Err(trouble),
            (None, trouble) => {
                let now = self.clock.now();
                let lease = self.factory.settings.lease();
                if now.since(since) >= lease && self.granted.are_over(now) {
                    self.adopt_new_cluster(patience)
                } else {
                    Err(trouble.unwrap_or_else(no_slots))
                }
            }
        }
    }

    /// The newest reply of the known nodes, and the failure of others.
    fn ask_known(&self, patience: Duration) -> (Option<Shards>, Option<Failure>) {
        let (ours, tls) = (self.map.read().epoch(), self.factory.settings.is_tls());
        let (mut newest, mut trouble): (Option<Shards>, Option<Failure>) = (None, None);
        for node in self.topology_sources() {
            if self.refresh_state.state.lock().closed {
                break;
            }
            let by = self.clock.now() + patience;
            match node.node.shards(&node.address.host, tls, by) {
                // A node that has not joined yet.
                Ok(told) if told.shards.is_empty() => {}
                Ok(told) if !self.map.read().is_of(&told.account(node.address.clone())) => {
                    node.set_suspect(true);
                    trouble = Some(self.foreign_node(&node, &told.id));
                }
                Ok(told) => {
                    node.set_suspect(false);
                    let is_new_enough = told.epoch >= ours;
                    if newest.as_ref().is_none_or(|newest| told.epoch > newest.epoch) {
                        newest = Some(told);
                    }
                    if is_new_enough {
                        break;
                    }
                }
                Err(failure) => {
                    node.set_suspect(true);
                    trouble = Some(failure);
                }
            }
        }
        (newest, trouble)
    }

    /// The failure of a node that no known node lists.
    fn foreign_node(&self, node: &ClusterNode, id: &str) -> Failure {
        let (address, known) = (&node.address, self.map.read().ids());
        if self.reported.lock().insert((id.to_owned(), address.clone())) {
            let notices = self.factory.settings.notices();
            notices.server_refused(&address.to_string(), &format!("one of {known}"), id);
        }
        Failure::NotSent(Error::unavailable(format!(
            "another cluster's node answers at {address}: {id}, which none of the known nodes \
             ({known}) lists"
        )))
    }

    /// No known node has answered for a lease: the cluster is gone, and its locks with it.
    fn adopt_new_cluster(&self, patience: Duration) -> Result<(), Failure> {
        let was = self.map.read().ids();
        let told = self.ask_configured(patience)?;
        let is = listed(told.nodes.iter().map(|(id, _)| id.as_str()));
        self.take_over(&told)?;
        *self.silent_since.lock() = None;
        let notices = self.factory.settings.notices();
        notices.server_changed(&format!("the cluster at {}", self.configured()), &was, &is);
        Ok(())
    }

    fn configured(&self) -> String {
        self.seeds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// The reply of the cluster that most configured addresses lead to. Stops when the rest cannot
    /// change that.
    fn ask_configured(&self, patience: Duration) -> Result<Shards, Failure> {
        let tls = self.factory.settings.is_tls();
        let (mut told, mut accounts, mut trouble) = (Vec::new(), Vec::new(), None);
        for node in self.seeds() {
            if self.refresh_state.state.lock().closed {
                break;
            }
            let by = self.clock.now() + patience;
            match node.node.shards(&node.address.host, tls, by) {
                Ok(shards) if shards.shards.is_empty() => {}
                Ok(shards) => {
                    node.set_suspect(false);
                    accounts.push(shards.account(node.address.clone()));
                    told.push(shards);
                }
                Err(failure) => {
                    node.set_suspect(true);
                    trouble = Some(failure);
                }
            }
            let found = deployments(&self.seeds, &accounts);
            // A single reply may be of a node that was removed from its cluster, and list outdated
            // addresses.
            let is_enough = |first: &Deployment| {
                first.covered == first.configured && first.accounts.len() * 2 > first.configured
            };
            if found.first().is_some_and(is_enough) {
                break;
            }
        }
        let found = deployments(&self.seeds, &accounts);
        let most = match &found[..] {
            [] => return Err(trouble.unwrap_or_else(no_slots)),
            [first, ..] if first.is_majority() => &first.accounts,
            _ => return Err(self.undecided(&accounts)),
        };
        let newest = most.iter().copied().max_by_key(|place| told[*place].epoch);
        Ok(told.swap_remove(newest.expect("a deployment has an account")))
    }

    /// The configured addresses lead to several clusters.
    fn undecided(&self, accounts: &[Account]) -> Failure {
        let each = accounts.iter().map(|it| format!("{} is the node {}", it.asked_at, it.id));
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
        let left = self.map.write().take_over(told, &self.factory).map_err(Failure::Refused)?;
        self.follow();
        // Requests to removed nodes fail now, and go to other nodes.
        left.gone.iter().for_each(|node| node.node.retire());
        Ok(())
    }

    /// The nodes to ask, in order: first those without a failure.
    pub(super) fn topology_sources(&self) -> Vec<Arc<ClusterNode>> {
        let map = self.map.read();
        let mut topology_sources = map.masters().to_vec();
        fastrand::shuffle(&mut topology_sources);
        let mut others = map.replicas().to_vec();
        drop(map);
        fastrand::shuffle(&mut others);
        others.extend(self.seeds.iter().cloned());
        others.retain(|address| !topology_sources.iter().any(|node| node.address == *address));
        topology_sources.extend(self.query_nodes(&others));
        topology_sources.sort_by_key(|node| node.is_suspect());
        topology_sources.truncate(MOST_ASKED);
        topology_sources
    }

    /// The configured nodes, first those without a failure.
    fn seeds(&self) -> Vec<Arc<ClusterNode>> {
        let mut seeds = self.query_nodes(&self.seeds);
        seeds.sort_by_key(|node| node.is_suspect());
        seeds
    }

    /// The nodes at these addresses, to ask for the slot map only. Others are dropped.
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

/// The background task: refreshes when requested or due, until closed.
struct Refresher {
    shared: Arc<Topology>,
    /// When the next refresh may begin if it was requested, and when it is due while in use.
    soon: Moment,
    later: Moment,
    backoff: Backoff,
    failures: u32,
}

impl Refresher {
    fn new(shared: Arc<Topology>) -> Self {
        let (now, backoff) = (shared.clock.now(), Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        Self { shared, soon: now, later: now, backoff, failures: 0 }
    }

    fn turn(&mut self) -> Option<Moment> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let in_use = shared.used.load(Ordering::Relaxed) || !shared.watches.is_empty();
        let mut state = shared.refresh_state.state.lock();
        if state.closed {
            // Later threads see that it is closed; the earlier ones are woken here.
            let left = std::mem::take(&mut state.waiting);
            drop(state);
            left.iter().for_each(|(_, signal)| signal.raise());
            return None;
        }
        let due = match (state.asked, in_use) {
            (true, _) => self.soon,
            (false, true) => self.later,
            (false, false) => Moment::NEVER,
        };
        if now < due {
            return Some(due);
        }
        state.begun += 1;
        shared.used.store(false, Ordering::Relaxed);
        if !std::mem::take(&mut state.asked) {
            self.backoff.reset();
        }
        drop(state);
        let patience = SOURCE_TIMEOUT * 2_u32.saturating_pow(self.failures.min(10));
        let patience = patience.min(shared.connect_timeout);
        let outcome = contain(|| shared.refresh(patience)).unwrap_or_else(|| {
            Err(Failure::NotSent(Error::unavailable("asking for the cluster panicked")))
        });
        self.failures = if outcome.is_ok() { 0 } else { self.failures + 1 };
        let now = shared.clock.now();
        self.soon = now + self.backoff.next();
        self.later = now + REFRESH.mul_f64(0.9 + fastrand::f64() / 5.0);
        shared.refresh_state.finish(outcome);
        Some(now)
    }
}

fn no_slots() -> Failure {
    Failure::NotSent(Error::unavailable(
        "no node that could be asked knows of any slots: was the cluster set up?",
    ))
}
