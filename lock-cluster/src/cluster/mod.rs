//! Redis Cluster: each request goes to the master of its lock's hash slot.
//!
//! - `scheme`: [`ClusterScheme`], the URLs
//! - `backend`: [`ClusterBackend`], the operations on locks
//! - `redirect`: routing of a request, by the slot map and the redirects of the nodes
//! - `redirect_queue`: asynchronous releases that were redirected
//! - `topology`: the task that refreshes the slot map
//! - `slot_map`: the slots and their nodes

mod backend;
mod redirect;
mod redirect_queue;
mod scheme;
mod slot_map;
mod topology;

pub use backend::ClusterBackend;
pub use scheme::ClusterScheme;
