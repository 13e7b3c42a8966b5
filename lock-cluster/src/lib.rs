//! distlock on Redis Cluster, and the quorum (Redlock) over independent masters.
//!
//! - `cluster`: [`ClusterScheme`], and [`ClusterBackend`], which routes requests by its
//!   [`ClusterMap`]
//! - `redlock`: [`RedlockScheme`] and [`QuorumBackend`]
//!
//! Requests to a single node are in `lock-redis`.

#![forbid(unsafe_code)]

mod cluster;
mod redlock;

pub use cluster::{ClusterBackend, ClusterMap, ClusterScheme};
pub use redlock::{
    QuorumBackend, QuorumNodeStatus, QuorumVote, RedlockScheme, quorum_status, set_up,
};
