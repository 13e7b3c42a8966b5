//! [`Survey`]: a query of several nodes for the slot map.
//!
//! One node is queried first, which is usually enough. Until enough nodes have answered, more are
//! queried every [`HEDGE`], because a deleted node never answers. An unanswered query lasts until
//! its own deadline, because a distant node answers late.

use super::ClusterMap;
use crate::cluster::slot_map::ClusterNode;
use lock_core::backend::{Failure, contain, no_thread, run_in_background};
use lock_core::{Error, Moment, Signal};
use lock_redis::servers::{Address, Shards};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The time without an answer after which more nodes are queried, because a deleted node never
/// answers. A distant node still has until `connect_timeout` for its answer.
pub(super) const HEDGE: Duration = Duration::from_millis(100);
/// The number of further nodes that are queried after each [`HEDGE`].
const BATCH: usize = 8;
/// The most nodes that are queried at a time, each by a thread. When one of them has failed or
/// timed out, the next is queried. So a node that answers is found among any number of nodes.
const MOST_AT_A_TIME: usize = 32;

/// A node that can be queried.
#[derive(Debug)]
pub(super) enum Source {
    Known(Arc<ClusterNode>),
    /// An address of the URL. Its host name is resolved anew, because it may lead elsewhere by now.
    Configured(Address),
}

/// The reply of a node, or its failure.
pub(super) struct SurveyReply {
    pub(super) node: Arc<ClusterNode>,
    pub(super) outcome: Result<Shards, Failure>,
}

/// The replies that have arrived.
#[derive(Default)]
struct Inbox {
    replies: Mutex<Vec<SurveyReply>>,
    signal: Arc<Signal>,
}

/// The IP addresses of those hosts in the URL that were queried.
pub(super) type HostAddresses = HashMap<String, Vec<IpAddr>>;

/// One query of several nodes.
pub(super) struct Survey<'a> {
    cluster_map: &'a ClusterMap,
    sources: VecDeque<Source>,
    inbox: Arc<Inbox>,
    pub(super) hosts: Arc<Mutex<HostAddresses>>,
    under_way: usize,
    /// The time at which more nodes are queried.
    more: Moment,
    /// The time after which no answer is needed.
    by: Moment,
}

impl<'a> Survey<'a> {
    /// Queries the first of `sources`.
    pub(super) fn new(cluster_map: &'a ClusterMap, sources: Vec<Source>, by: Moment) -> Self {
        let mut survey = Self {
            cluster_map,
            sources: sources.into(),
            inbox: Arc::default(),
            hosts: Arc::default(),
            under_way: 0,
            more: cluster_map.clock.now() + HEDGE,
            by,
        };
        survey.ask_next();
        survey
    }

    /// Waits for the next replies. Returns an empty list if every node has replied, the time is
    /// over, or the map is closed.
    pub(super) fn next(&mut self) -> Vec<SurveyReply> {
        loop {
            let replies = std::mem::take(&mut *self.inbox.replies.lock());
            self.under_way -= replies.len();
            if !replies.is_empty() {
                return replies;
            }
            if self.under_way == 0 {
                self.ask_next();
            }
            let now = self.cluster_map.clock.now();
            if self.under_way == 0 || now >= self.by || self.cluster_map.refresh_state.is_closed() {
                return Vec::new();
            }
            if now >= self.more {
                self.more = now + HEDGE;
                (0..BATCH).for_each(|_| self.ask_next());
            }
            // Not longer than until `more`, even if no node is left to query: a close of the map
            // does not raise the signal.
            self.cluster_map
                .clock
                .wait(&self.inbox.signal, self.more.min(self.by));
        }
    }

    /// Queries one more node, if one is left and fewer than [`MOST_AT_A_TIME`] are being queried.
    pub(super) fn ask_next(&mut self) {
        while self.under_way < MOST_AT_A_TIME
            && let Some(source) = self.sources.pop_front()
        {
            // An unusable address is skipped.
            let node = match &source {
                Source::Known(node) => Some(Arc::clone(node)),
                Source::Configured(address) => self
                    .cluster_map
                    .map
                    .write()
                    .query_node(address, &self.cluster_map.factory),
            };
            if let Some(node) = node {
                self.under_way += 1;
                self.ask(node, matches!(source, Source::Configured(_)));
                return;
            }
        }
    }

    /// Queries in the background, because one thread can wait for only one connection at a time.
    fn ask(&self, node: Arc<ClusterNode>, is_configured: bool) {
        let by = self
            .by
            .min(self.cluster_map.clock.now() + self.cluster_map.connect_timeout);
        let (tls, inbox) = (
            self.cluster_map.factory.settings.is_tls(),
            Arc::clone(&self.inbox),
        );
        let (asked, hosts) = (Arc::clone(&node), Arc::clone(&self.hosts));
        let ask = move || {
            let outcome = contain(|| {
                let host = &asked.address.host;
                if is_configured {
                    let addresses = asked.node.resolve(by).iter().map(SocketAddr::ip).collect();
                    hosts.lock().insert(host.clone(), addresses);
                }
                asked.node.shards(host, tls, by)
            });
            inbox.put(asked, outcome.unwrap_or_else(|| Err(panicked())));
        };
        if let Err(error) = run_in_background(ask) {
            let error = no_thread("cannot start a thread that asks for the cluster", error);
            self.inbox.put(node, Err(Failure::NotSent(error)));
        }
    }
}

impl Inbox {
    fn put(&self, node: Arc<ClusterNode>, outcome: Result<Shards, Failure>) {
        self.replies.lock().push(SurveyReply { node, outcome });
        self.signal.raise();
    }
}

pub(super) fn panicked() -> Failure {
    Failure::NotSent(Error::unavailable("asking for the cluster panicked"))
}
