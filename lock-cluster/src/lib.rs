//! distlock on Redis Cluster, and the quorum (Redlock) over independent masters. The map, from the top down:
//!
//! - [`ClusterScheme`]: what `redis+cluster://` URLs lead to
//! - [`ClusterBackend`]: the store as the engine sees it, one attempt at a time
//! - `route`: to the node of a slot, and on from there by what it answers
//! - `again`: releases that nobody waits for and that were sent to the wrong node
//! - `topology`: which node serves which slot, and the thread that asks for it
//! - `map`: the slots and their nodes
//! - `address_map`: nodes that are elsewhere than the cluster says
//! - `quorum`: [`RedlockScheme`] and [`QuorumBackend`], a majority of independent masters
//!
//! What a node is, and what is asked of it, is `lock-redis`'s.

#![forbid(unsafe_code)]

mod address_map;
mod again;
mod backend;
mod map;
mod quorum;
mod route;
mod scheme;
mod topology;

pub use backend::ClusterBackend;
pub use quorum::{QuorumBackend, RedlockScheme, set_up};
pub use scheme::ClusterScheme;
