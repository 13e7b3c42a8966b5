//! distlock on one Redis server, or on a master with its replicas and sentinels.
//!
//! From the top down:
//!
//! - [`RedisScheme`], [`SentinelScheme`]: which URLs lead here
//! - `url`: what a URL says of servers: addresses, credentials, TLS
//! - `store`: [`RedisStore`], servers of any topology as a store of locks
//! - [`topology`]: which server a request goes to, and what its answer is worth
//! - `standalone`: the topology of the one server that a URL names
//! - `sentinel`: [`SentinelBackend`], the topology of the master that the sentinels name
//! - `node`: one server and all our connections to it; alone, or as a node of a cluster or of a
//!   quorum
//! - `protocol`: what stands under a lock's key, and what is sent for it: operations as values,
//!   without I/O
//! - `wakeups`: the subscriber, one connection that receives releases for all waiters
//! - `keys`: the names of keys and channels
//! - `connection`: connections to one server: exclusive, multiplexed, pooled; every wait has a
//!   deadline; and what the server's errors mean
//! - `lua`: the scripts
//! - [`servers`], [`quorum`]: what stores of several servers are built from, as `lock-cluster` is

#![forbid(unsafe_code)]

mod connection;
mod keys;
mod lua;
mod node;
mod protocol;
pub mod quorum;
mod scheme;
mod sentinel;
pub mod servers;
mod standalone;
mod store;
pub mod topology;
mod url;
mod wakeups;

pub use scheme::{RedisScheme, SentinelScheme};
pub use sentinel::SentinelBackend;
pub use store::RedisStore;
