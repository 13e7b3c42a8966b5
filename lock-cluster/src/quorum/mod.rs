//! The quorum (Redlock): a lock stands on a majority of independent masters. The map, from the top down:
//!
//! - [`RedlockScheme`]: what `redlock://` URLs lead to
//! - [`QuorumBackend`]: the store as the engine sees it; one attempt asks all nodes at once
//! - `attempt`: what an attempt does, and what its answers mean together
//! - `renewals`: many at once, on all nodes
//! - `ballot`: what is known of one owner's holding on each node, for as long as it lasts
//! - `tally`: the questions that a majority decides
//! - `proposals`: the tokens to propose
//! - `watches`: waiters, woken once for each release
//! - `seat`: one node's threads, and what is left to be closed there
//! - `member`: a store as one of a quorum's nodes
//! - `roll`: which answers count together
//! - `tending`: who is a member: servers that become nodes, and take a node's place

mod attempt;
mod backend;
mod ballot;
mod gathering;
mod member;
mod proposals;
mod renewals;
mod roll;
mod scheme;
mod seat;
mod tally;
mod tending;
mod watches;

pub use backend::QuorumBackend;
pub use scheme::{RedlockScheme, set_up};
