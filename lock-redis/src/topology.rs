//! [`Topology`]: routes requests to servers, and judges their outcomes.
//!
//! A topology is a router. It names the node for a request ([`Hop`]), judges the outcome there
//! ([`Verdict`]), and names the next node if the request is to be sent again. It performs no
//! operation on locks itself: [`RedisStore`](crate::RedisStore) does, on any topology.
//!
//! - [`Topology`]: the router
//! - [`RoutedRequest`]: the parts of a request that routing depends on
//! - [`Hop`]: one node that a request is sent to
//! - [`Effect`]: the effect of an answered request on the store
//! - [`Verdict`]: the judgement of the outcome on one node
//! - [`JudgeSubmitted`]: judges the outcome of a release that no thread waits for
//!
//! There are three topologies: one server ([`Node`], in `standalone.rs`); the master that sentinels
//! name (`sentinel/routing.rs`); the masters of a cluster (`cluster/routing` in `lock-cluster`).

use crate::node::{Node, WatchRegistry, WeakNode};
use lock_core::backend::{
    Abilities, AcquisitionId, Attempt, Failure, NodeId, Release, RenewalRequest,
};
use lock_core::{Finding, LockName, Moment};
use std::fmt;
use std::sync::Arc;

/// A router of requests to the servers of one store.
///
/// `judge`, and the function that `judge_submitted` returns, never wait: they use only what is
/// already known. The returned function runs on the thread that reads replies. `route`, `reroute`,
/// `confirm` and `check_unreplicated` may wait until `by`.
pub trait Topology: fmt::Debug + Send + Sync + 'static {
    /// What a request carries from node to node, for `judge` and `reroute`.
    type RouteState: Clone + fmt::Debug + Send;

    /// True if the locks are spread over several nodes. Otherwise all locks are on one node.
    const IS_SPREAD: bool;

    /// True if no other server can take the place of a server, so that the store can be a node of a
    /// quorum.
    const IS_INDEPENDENT: bool = false;

    /// Returns what this store supports in its wire format.
    fn abilities(&self) -> Abilities;

    /// Returns the node of a lock, if it is known without asking a server.
    fn known(&self, name: &LockName) -> Option<Hop<Self::RouteState>>;

    /// Returns whether a grant of this lock by a release on this node counts, as far as is known
    /// without asking a server.
    fn counts(&self, name: &LockName, node: &WeakNode) -> bool {
        self.known(name).is_some_and(|hop| node.is(&hop.node))
    }

    /// Returns the node that renews a lock, so that a node that hangs delays only its own renewals.
    /// Does not wait.
    fn renewal_node(&self, name: &LockName) -> NodeId;

    /// Returns the node that a request goes to first.
    ///
    /// # Errors
    ///
    /// If no node is known and none could be found, or if the node must not get this request now.
    /// Nothing was sent.
    fn route(
        self: &Arc<Self>,
        request: &RoutedRequest<'_>,
        by: Moment,
    ) -> Result<Hop<Self::RouteState>, Failure>;

    /// Returns the nodes that a listing has yet to visit: those with this number or a larger one,
    /// in the order of their numbers. A node that is added during the listing comes last. By
    /// default, returns the one node of the store.
    ///
    /// # Errors
    ///
    /// As for `route`.
    fn nodes_from(
        self: &Arc<Self>,
        number: u64,
        by: Moment,
    ) -> Result<Vec<Hop<Self::RouteState>>, Failure> {
        let _only_one = number;
        Ok(vec![self.route(&RoutedRequest::List, by)?])
    }

    /// Judges the outcome of a request at `hop`. Also notes that the node answered or failed, and
    /// that a lock was granted or released.
    fn judge(
        &self,
        request: &RoutedRequest<'_>,
        hop: &Hop<Self::RouteState>,
        outcome: Result<Effect, &Failure>,
    ) -> Verdict;

    /// Returns the function that judges the outcome of a release whose caller does not wait; `None`
    /// if every outcome is believed. The function must not keep the topology alive until the
    /// reply arrives.
    fn judge_submitted(
        self: &Arc<Self>,
        hop: &Hop<Self::RouteState>,
        acquisition: &AcquisitionId,
    ) -> Option<JudgeSubmitted>;

    /// Returns the next hop of a request that was judged [`Verdict::Reroute`] at `hop`. Without a
    /// `failure`, the node answered, but is no longer the node of the lock.
    ///
    /// # Errors
    ///
    /// The outcome of the request, if it is not sent again.
    fn reroute(
        self: &Arc<Self>,
        request: &RoutedRequest<'_>,
        hop: Hop<Self::RouteState>,
        failure: Option<Failure>,
        by: Moment,
    ) -> Result<Hop<Self::RouteState>, Failure>;

    /// Converts the failure with which a request ends to the failure that the caller receives.
    fn settle(failure: Failure) -> Failure {
        failure
    }

    /// Checks with other servers, if necessary, that the node that has answered is still the node
    /// of the lock. Called before the answer is judged.
    fn confirm(self: &Arc<Self>, request: &RoutedRequest<'_>, by: Moment) {
        let _nothing_to_ask = (request, by);
    }

    /// Returns true if no other server can take over from this node, so that a grant cannot be lost
    /// although replicas have not confirmed it. May query servers.
    fn check_unreplicated(&self, hop: &Hop<Self::RouteState>, by: Moment) -> bool {
        let _unknown = (hop, by);
        false
    }

    /// Returns the watches that follow their locks from node to node; `None` if locks do not move.
    fn watches(&self) -> Option<&WatchRegistry>;

    /// Returns findings about the servers' settings and state, as far as they matter for locks.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn diagnose(self: &Arc<Self>, by: Moment) -> Result<Vec<Finding>, Failure>;

    /// Ends the topology's threads. Called when the store is dropped; a release in its resend queue
    /// may keep the topology itself alive.
    fn end_background_work(&self) {}
}

/// One node that a request is sent to.
#[derive(Clone, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct Hop<S> {
    /// The node, or [`Node::asking`] for a slot of a cluster that is being moved to the node.
    pub node: Node,
    /// The number of the node, which no other node of the store ever has.
    pub number: u64,
    /// What the request carries from node to node.
    pub state: S,
}

/// The parts of a request that routing depends on.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::exhaustive_enums,
    reason = "for the crate of the same workspace"
)]
pub enum RoutedRequest<'a> {
    /// An attempt to take a lock.
    Acquire(&'a Attempt<'a>),
    /// One renewal of a batch. It is sent again only if a redirect names the next node, because the
    /// engine repeats failed renewals.
    Renew(&'a RenewalRequest),
    /// A release.
    Release(&'a AcquisitionId),
    /// Any other change of a lock.
    Change(&'a LockName),
    /// A read of a lock that a decision depends on. Its answer is [confirmed](Topology::confirm),
    /// and the read may be repeated if its outcome is unknown.
    Inspect(&'a LockName),
    /// A subscription to the releases of a lock.
    Watch(&'a LockName),
    /// A read of many locks of one node. Its answer is [confirmed](Topology::confirm).
    InspectAll,
    /// A listing of the locks of one node. Its answer is [confirmed](Topology::confirm).
    List,
    /// A diagnosis of one node.
    Diagnose,
}

impl<'a> RoutedRequest<'a> {
    /// Returns the lock that the request is about, if it is about one.
    #[must_use]
    pub fn name(&self) -> Option<&'a LockName> {
        match self {
            Self::Acquire(attempt) => Some(attempt.name),
            Self::Renew(renewal) => Some(&renewal.acquisition.name),
            Self::Release(acquisition) => Some(&acquisition.name),
            Self::Change(name) | Self::Inspect(name) | Self::Watch(name) => Some(name),
            Self::InspectAll | Self::List | Self::Diagnose => None,
        }
    }
}

/// The effect of an answered request on the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_enums,
    reason = "for the crate of the same workspace"
)]
pub enum Effect {
    /// No effect, so the request may be sent to another node instead.
    None,
    /// The store was changed, or may have been.
    Changed,
    /// A lease began, or was extended.
    Granted,
    /// A lease began, or was extended, and too few replicas have confirmed that.
    Unconfirmed,
    /// The lock was released.
    Freed,
}

/// The judgement of the outcome of a request on one node.
#[derive(Debug)]
#[allow(
    clippy::exhaustive_enums,
    reason = "for the crate of the same workspace"
)]
pub enum Verdict {
    /// The outcome counts, be it an answer or a failure.
    Believe,
    /// The request fails with this failure instead, because the request's effect may be lost with
    /// the node.
    Instead(Failure),
    /// The outcome on the node is not final. [`Topology::reroute`] decides if and where the request
    /// goes next.
    Reroute,
}

/// Judges the outcome of a submitted release: see [`Topology::judge_submitted`].
pub type JudgeSubmitted = Box<dyn FnOnce(Result<&Release, &Failure>) -> Verdict + Send>;
