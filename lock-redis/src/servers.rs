//! Servers as parts of a store of several servers: the building blocks of `lock-cluster`.
//!
//! - [`Node`]: one server and all connections to it; makes one attempt for each request
//! - [`NodeSettings`]: the common settings of one client's nodes; makes the nodes
//! - [`Format`]: the wire format that `format=` names; opens the store in this format
//! - [`StoreKind`]: the kind of store that a node is part of, for its diagnosis
//! - [`ServerClock`]: by how much the clock of a server is ahead of another clock
//! - [`Granted`]: the time until which a lock of this client may be held
//! - [`WatchRegistry`]: watches that move to another node together with their locks
//! - [`Address`]: a host and a port, as servers announce them
//! - [`AddressMap`]: the setting `address_map`, from announced to reachable addresses
//! - [`Account`]: a server's ID, and the servers that it lists
//! - [`Deployment`]: servers that list each other, and the number of configured ones among them
//! - [`Shards`]: the masters of a cluster and their slots, as one node lists them
//! - [`Redirect`]: the error of a cluster node that did not execute a request because of the slot
//! - [`StepHook`]: delays a format of several commands between two of them, in tests
//!
//! Only for the crates of this workspace: any release may change this module.

pub use crate::connection::{Address, AddressMap};
pub use crate::node::cluster::{Redirect, Shards};
pub use crate::node::{
    Account, Deployment, Granted, Node, NodeSettings, ServerClock, StoreKind, WatchRegistry,
};
pub use crate::protocol::Format;
pub use crate::protocol::classic::StepHook;
