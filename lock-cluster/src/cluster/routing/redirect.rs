//! The next hop of a request that a node did not execute.
//!
//! A node that redirects a request has not executed it, so the request is sent to the named node. A
//! request without an answer is not sent again here: its outcome is unknown, and the engine handles
//! that.

use super::SlotRoute;
use crate::cluster::cluster_map::ClusterMap;
use lock_core::backend::Failure;
use lock_core::{Error, Moment, Signal};
use lock_redis::servers::Redirect;
use lock_redis::topology::Hop;
use std::sync::Arc;

/// The number of redirects that are followed without a pause.
const REDIRECTS: u32 = 4;

impl ClusterMap {
    /// Returns the next hop of a request that failed: another node, or the owner of the slot after
    /// a pause.
    pub(super) fn next_hop(
        self: &Arc<Self>,
        mut state: SlotRoute,
        failure: Failure,
        by: Moment,
    ) -> Result<Hop<SlotRoute>, Failure> {
        let (slot, clock) = (state.slot, self.clock());
        state.redirects += 1;
        let next = self.next_node(&state, failure, by)?;
        if clock.now() >= by {
            return Err(Failure::NotSent(Error::unavailable(format!(
                "slot {slot} of the cluster was moving, or without a node, until the deadline"
            ))));
        }
        if let Some(next) = next
            && state.redirects <= REDIRECTS
        {
            return Ok(next);
        }
        let later = clock.now() + state.backoff.next();
        clock.wait(&Arc::<Signal>::default(), by.min(later));
        Ok(state.at(self.owner(slot, by)?).direct())
    }

    /// Returns the next hop of a request that failed on this node. Returns `None` if the request
    /// must be sent to the owner of the slot after a pause, and the failure if it must not be sent
    /// again.
    fn next_node(
        self: &Arc<Self>,
        state: &SlotRoute,
        failure: Failure,
        by: Moment,
    ) -> Result<Option<Hop<SlotRoute>>, Failure> {
        let (slot, node) = (state.slot, &state.owner);
        match (Redirect::of(&failure), &failure) {
            (Some(Redirect::Moved(to)), _) => {
                let to = self.destination(node, to);
                // The redirect leads back to the same node.
                if to == node.address {
                    return Ok(None);
                }
                match self.moved(slot, node, &to, by) {
                    Ok(to) => Ok(Some(state.at(to).direct())),
                    // The refresh has failed, or has found no new owner of the slot.
                    Err(_) if !to.has_host() => Ok(None),
                    Err(failure) => Err(failure),
                }
            }
            (Some(Redirect::Ask(to)), _) => {
                let to = self.destination(node, to);
                if !to.has_host() {
                    // The host becomes known once the slot has moved.
                    return Ok(None);
                }
                Ok(Some(state.at(self.node(node, &to, by)?).asking()))
            }
            (Some(Redirect::TryAgain), _) => Ok(None),
            (Some(_), _) | (None, Failure::NotSent(_)) => {
                // Another node may have replaced this one already.
                let successor = self.successor(slot, node, by)?.ok_or(failure)?;
                Ok(Some(state.at(successor).direct()))
            }
            (None, _) => Err(failure),
        }
    }

    /// Returns the next hop of a renewal that was redirected. Does not wait for a moving slot,
    /// because the engine renews again.
    pub(super) fn next_hop_of_renewal(
        self: &Arc<Self>,
        state: &SlotRoute,
        failure: Failure,
        by: Moment,
    ) -> Result<Hop<SlotRoute>, Failure> {
        let (slot, node) = (state.slot, &state.owner);
        match Redirect::of(&failure) {
            Some(Redirect::Moved(to)) => {
                let to = self.destination(node, to);
                Ok(state.at(self.moved(slot, node, &to, by)?).direct())
            }
            Some(Redirect::Ask(to)) => {
                let to = self.destination(node, to);
                Ok(state.at(self.node(node, &to, by)?).asking())
            }
            _ => Err(failure),
        }
    }
}
