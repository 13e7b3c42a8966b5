//! Servers as parts of a store of several: what `lock-cluster` routes requests to.
//!
//! - [`Node`]: one server and all connections to it: one attempt for each request
//! - [`NodeSettings`]: what the nodes of one client have in common, and how one is made
//! - [`Format`]: what stands under a lock's key, by `format=`; opens the store that it fits to
//! - [`StoreKind`]: what a node is a part of, for its diagnosis
//! - [`ServerClock`]: by how much the clock of a server is ahead
//! - [`Granted`]: until when a lock of this client may be held
//! - [`WatchRegistry`]: watches that move to another node together with their locks
//! - [`Address`]: a host and a port, as servers announce them
//! - [`AddressMap`]: the setting `address_map`, from announced to reachable addresses
//! - [`Account`]: the servers that one server lists
//! - [`Deployment`]: servers that list each other, and how many of the configured ones they are
//! - [`Shards`]: the masters of a cluster and their slots, as one node lists them
//! - [`Redirect`]: the reply of a cluster node that did nothing
//! - [`StepHook`]: holds up a format of several commands between two of them, in tests
//!
//! For the crates of this workspace: it changes with any release.

pub use crate::connection::{Address, AddressMap};
pub use crate::node::cluster::{Redirect, Shards};
pub use crate::node::{
    Account, Deployment, Granted, Node, NodeSettings, ServerClock, StoreKind, WatchRegistry,
};
pub use crate::protocol::Format;
pub use crate::protocol::classic::StepHook;
