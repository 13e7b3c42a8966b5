//! [`Topology::route`]: sends a request to the owner of its slot, and follows the redirects of the
//! nodes.
//!
//! A redirect says that the node did nothing, so the request goes on to the named node. A request
//! without an answer is not sent again: its outcome is unknown, and the engine handles that.

use super::slot_map::ClusterNode;
use super::topology::Topology;
use lock_core::backend::{Backoff, Failure};
use lock_core::{Error, Moment, Signal};
use lock_redis::servers::{Node, Redirect, RequestMode};
use std::sync::Arc;
use std::time::Duration;

/// The first pause before a request to a moving slot is sent again, because a slot with few keys
/// moves in milliseconds. It doubles, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest such pause, so that a moved slot is used soon.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// The number of redirects that are followed without a pause. More mean that the nodes disagree.
const REDIRECTS: u32 = 4;

/// An answer and the node that gave it.
#[derive(Debug)]
pub(crate) struct RoutedReply<T> {
    pub(crate) answer: T,
    node: Arc<ClusterNode>,
    mode: RequestMode,
}

impl<T> RoutedReply<T> {
    /// The answer, if the node still owns the slot. A replaced master may have been isolated, and
    /// its writes lost: the outcome is unknown then.
    pub(crate) fn if_still_owner(self, slot: u16, topology: &Topology) -> Result<T, Failure> {
        let is_owner = || {
            topology
                .look(slot)
                .is_some_and(|owner| Arc::ptr_eq(&owner, &self.node))
        };
        if self.mode == RequestMode::Asking || is_owner() {
            return Ok(self.answer);
        }
        Err(Failure::Unknown(superseded(&self.node)))
    }
}

/// The error of an answer by a node that no longer serves the slot.
pub(crate) fn superseded(node: &ClusterNode) -> Error {
    Error::unavailable(format!(
        "{} has answered, and serves the slot no longer",
        node.address
    ))
}

/// The next step of a request.
enum NextHop {
    To(Arc<ClusterNode>, RequestMode),
    /// To the owner of the slot, after a pause.
    Later,
}

impl Topology {
    /// Asks the owner of `slot`, and the nodes that redirects name.
    pub(crate) fn route<T>(
        self: &Arc<Self>,
        slot: u16,
        by: Moment,
        mut ask: impl FnMut(&Node) -> Result<T, Failure>,
    ) -> Result<RoutedReply<T>, Failure> {
        let clock = self.clock();
        let mut next = NextHop::To(self.owner(slot, by)?, RequestMode::Direct);
        let (mut redirects, mut backoff) = (0, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        loop {
            let NextHop::To(node, mode) = next else {
                clock.wait(
                    &Arc::<Signal>::default(),
                    by.min(clock.now() + backoff.next()),
                );
                next = NextHop::To(self.owner(slot, by)?, RequestMode::Direct);
                continue;
            };
            let failure = match ask(&node.node.asked(mode)) {
                Ok(answer) => return Ok(RoutedReply { answer, node, mode }),
                Err(failure) => failure,
            };
            redirects += 1;
            next = self.next_hop(slot, &node, failure, by)?;
            if clock.now() >= by {
                return Err(Failure::NotSent(Error::unavailable(format!(
                    "slot {slot} of the cluster was moving, or without a node, until the deadline"
                ))));
            }
            if redirects > REDIRECTS {
                next = NextHop::Later;
            }
        }
    }

    /// The next hop of a request that failed on this node; or the failure, if there is none.
    fn next_hop(
        self: &Arc<Self>,
        slot: u16,
        node: &Arc<ClusterNode>,
        failure: Failure,
        by: Moment,
    ) -> Result<NextHop, Failure> {
        match (Redirect::of(&failure), &failure) {
            (Some(Redirect::Moved(to)), _) => {
                let to = self.destination(node, to);
                // A node that names itself does not know the address by which it is reached.
                if to == node.address {
                    return Ok(NextHop::Later);
                }
                match self.moved(slot, node, &to, by) {
                    Ok(to) => Ok(NextHop::To(to, RequestMode::Direct)),
                    // No other node has heard of it yet.
                    Err(_) if !to.has_host() => Ok(NextHop::Later),
                    Err(failure) => Err(failure),
                }
            }
            (Some(Redirect::Ask(to)), _) => {
                let to = self.destination(node, to);
                if !to.has_host() {
                    // Known as soon as the slot has moved.
                    return Ok(NextHop::Later);
                }
                let to = self.node(node, &to, by)?;
                Ok(NextHop::To(to, RequestMode::Asking))
            }
            (Some(Redirect::TryAgain), _) => Ok(NextHop::Later),
            (Some(_), _) | (None, Failure::NotSent(_)) => {
                self.suspect(node);
                // Another node may have taken over already.
                let successor = self.successor(slot, node, by)?.ok_or(failure)?;
                Ok(NextHop::To(successor, RequestMode::Direct))
            }
            (None, Failure::Unknown(_)) => {
                self.suspect(node);
                Err(failure)
            }
            (None, _) => Err(failure),
        }
    }
}
