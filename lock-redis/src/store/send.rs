//! Sends one request to a node, and to further nodes as the topology decides.

use crate::node::on;
use crate::topology::{Effect, Hop, RoutedRequest, Topology, Verdict};
use lock_core::backend::{AcquisitionId, Failure, Release, ReleaseOptions};
use lock_core::{LockName, Moment};
use std::sync::Arc;

/// Sends a request to the node of `first`, and to further nodes as the topology decides. `attempt`
/// makes one attempt on one node, and `effect` returns the effect of its answer.
#[inline]
pub(crate) fn send<T: Topology, A>(
    topology: &Arc<T>,
    request: &RoutedRequest<'_>,
    by: Moment,
    first: Result<Hop<T::RouteState>, Failure>,
    mut attempt: impl FnMut(&Hop<T::RouteState>) -> Result<A, Failure>,
    effect: impl Fn(&A) -> Effect,
) -> Result<A, Failure> {
    let settled = |failure| match request.name() {
        Some(name) => settled_on::<T>(name, failure),
        None => failure,
    };
    let mut hop = first.map_err(settled)?;
    loop {
        let outcome = attempt(&hop);
        if outcome.is_ok() {
            topology.confirm(request, by);
        }
        let next = match topology.judge(request, &hop, outcome.as_ref().map(&effect)) {
            // Returned as it is, because a grant is large to copy.
            Verdict::Believe if outcome.is_ok() => return outcome,
            Verdict::Believe => return outcome.map_err(settled),
            Verdict::Instead(failure) => Err(failure),
            Verdict::Reroute => topology.reroute(request, hop, outcome.err(), by),
        };
        hop = next.map_err(settled)?;
    }
}

/// Converts the last failure of a request about this lock to the failure for the caller, and adds
/// the lock's name.
pub(super) fn settled_on<T: Topology>(name: &LockName, failure: Failure) -> Failure {
    on(name)(T::settle(failure))
}

/// Releases a lock on the node that has it. Uses only the topology, so that the resend queue can
/// call it.
#[inline]
pub(super) fn release<T: Topology>(
    topology: &Arc<T>,
    acquisition: &AcquisitionId,
    options: ReleaseOptions,
    by: Moment,
) -> Result<Release, Failure> {
    let request = RoutedRequest::Release(acquisition);
    let effect = |release: &Release| match release {
        Release::Freed => Effect::Freed,
        _ => Effect::Changed,
    };
    let release = |hop: &Hop<_>| hop.node.release(acquisition, options, by);
    let first = topology.route(&request, by);
    send(topology, &request, by, first, release, effect)
}
