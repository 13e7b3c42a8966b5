//! Models of two protocols: the votes of a quorum, and the wait queue of one server. The checker
//! `stateright` searches their states.
//!
//! - [`choice`]: how the members of a quorum choose the next members
//! - [`node`]: one node, as a function of its state and a request
//! - [`quorum`]: three nodes with clients, a network, leases and restarts
//! - [`queue`]: clients that wait for a lock in the server's queue, and its checks
//! - [`walk`]: a random path through the model of the quorum
//! - `checked`: searches all states of the quorum, one kind of trouble at a time, and shows the
//!   faults that appear when a rule is left out
//! - `report`: helpers that the checks of both models share
//!
//! `tests/quorum/replay` replays paths of the quorum's model against real stores.

#![forbid(unsafe_code)]
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    missing_docs,
    reason = "it is never published: made for the tests of this workspace, and what needs words \
    has them"
)]

pub mod choice;
pub mod node;
pub mod queue;
pub mod quorum;
pub mod walk;

#[cfg(test)]
mod checked;
#[cfg(test)]
mod report;
