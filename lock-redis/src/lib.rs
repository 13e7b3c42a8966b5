//! distlock on one Redis server, or on a master with its replicas and sentinels.
//!
//! From the top down:
//!
//! - [`RedisScheme`], [`SentinelScheme`]: which URLs lead here
//! - `url`: what a URL says of servers: addresses, credentials, TLS
//! - [`RedisBackend`]: one server as a store of locks
//! - [`SentinelBackend`]: the master that the sentinels name, as a store of locks
//! - `classic`: stores of locks that do not say who holds them
//! - `node`: one server, all our connections to it, and what can be asked of it
//! - `replica_ack`: a connection that waits for replicas after each request
//! - `eviction`: whether a server may evict locks
//! - `deployment`: which servers belong together, and which of several deployments a URL means
//! - `watch_registry`: watches that move to another node together with their locks
//! - `format`: what stands under a lock's key, and its scripts in `lua/`
//! - `keys`: the names of keys and channels
//! - `cluster_node`: a server as a node of a cluster: its slots and its redirects
//! - `script`: EVALSHA, and EVAL where the server does not know the script
//! - `reply`, `error_mapping`: what a server answers, and what its errors mean
//! - `foreign_client`: libraries whose waiters a release can wake as well
//! - `pubsub`: the subscriber, one connection that receives releases for all waiters
//! - `quorum_node`: a server as a node of a quorum: its marker and its votes
//! - `single_flight`: concurrent identical calls share one
//! - `connection`: connections to one server: exclusive, multiplexed, pooled; every wait has a
//!   deadline

#![forbid(unsafe_code)]

mod address;
mod backend;
mod classic;
mod cluster_node;
mod connection;
mod deployment;
mod error_mapping;
mod eviction;
mod foreign_client;
mod format;
mod keys;
mod node;
mod pubsub;
mod quorum_node;
mod replica_ack;
mod reply;
mod scheme;
mod script;
mod sentinel;
mod single_flight;
mod text;
mod url;
mod watch_registry;

pub use backend::RedisBackend;
pub use scheme::{RedisScheme, SentinelScheme};
pub use sentinel::SentinelBackend;

/// What `lock-cluster` is built from: nodes, and the wire format. Not a public interface: it
/// changes with any release.
#[doc(hidden)]
pub mod parts {
    pub use crate::address::Address;
    pub use crate::classic::{StepHook, bare_format, open_any_format};
    pub use crate::cluster_node::{Redirect, SLOTS, Shard, Shards};
    pub use crate::deployment::{Account, Deployment, Granted, deployments};
    pub use crate::eviction::OPTION as EVICTION;
    pub use crate::format::{Format, OPTION as FORMAT};
    pub use crate::node::{Node, NodeSettings, RequestMode, WithView};
    pub use crate::quorum_node::{
        Admission, Agreement, MarkerRequest, Member, Members, NodeView, ProposalReply, ServerInfo,
        ServerState, VoteTerms,
    };
    pub use crate::replica_ack::Listing;
    pub use crate::watch_registry::{RelocatableWatch, WatchRegistry};
}
