//! Two protocols as models. The quorum's: what three nodes say, and everything that clients, the
//! network, leases and restarts can do to it. And the queue of waiters of one server. The map:
//!
//! - [`choice`]: how the members choose the next ones
//! - [`node`]: one node, as a function of its state and a request
//! - [`quorum`]: three of them, and the world
//! - [`queue`]: clients that wait for a lock in the server's queue, and its checks
//! - [`walk`]: one way through all that may happen
//! - `checked`: all states of the quorum, one kind of trouble at a time; and what is found where a
//!   rule is left out
//! - `report`: what the checks of both share
//!
//! The traces of the quorum that are replayed against the real stores are in `tests/quorum/replay`.

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
