//! distlock on one Redis server, or on a master with its replicas and sentinels.
//!
//! From the top down:
//!
//! - [`RedisScheme`], [`SentinelScheme`]: the URL schemes of this crate
//! - `url`: reads servers from a URL: addresses, credentials, TLS
//! - `store`: [`RedisStore`], servers of any topology as a store of locks
//! - [`topology`]: routes requests to servers, and judges their outcomes
//! - `standalone`: the topology of the one server that a URL names
//! - `sentinel`: [`SentinelBackend`], the topology of the master that the sentinels name
//! - `redis_rs` (feature `redis-rs`): the application's own pool of connections
//! - `node`: one server and all our connections to it; a store of its own, or a node of a cluster
//!   or of a quorum
//! - `protocol`: the wire formats: what is stored under a lock's keys, and the requests of each
//!   operation, without I/O
//! - `wakeups`: the subscriber, one connection that receives the messages about releases for all
//!   waiters
//! - `keys`: the names of keys and channels
//! - `connection`: connections to one server (exclusive, multiplexed, pooled), on which every wait
//!   has a deadline; and the meaning of the server's errors
//! - `lua`: the scripts
//! - [`servers`], [`quorum`]: the parts from which `lock-cluster` builds stores of several servers

#![forbid(unsafe_code)]

mod connection;
mod keys;
mod lua;
mod node;
mod protocol;
pub mod quorum;
mod receipt;
#[cfg(feature = "redis-rs")]
pub mod redis_rs;
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
