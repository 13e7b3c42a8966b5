//! Redis Cluster: each request goes to the master of its lock's hash slot.
//!
//! - `scheme`: [`ClusterScheme`], the URLs
//! - `routing`: [`ClusterBackend`], the store, which chooses the node for a request by the slot map
//!   and by redirects of the nodes
//! - `cluster_map`: [`ClusterMap`], and the task that refreshes it
//! - `slot_map`: the slots and their nodes

mod cluster_map;
mod routing;
mod scheme;
mod slot_map;

pub use cluster_map::ClusterMap;
pub use routing::ClusterBackend;
pub use scheme::ClusterScheme;
