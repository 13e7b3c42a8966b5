//! distlock on one Redis server, or on a master with its replicas and sentinels. The map, from the top down:
//!
//! - [`RedisScheme`]: what `redis://` URLs lead to
//! - [`SentinelScheme`] and [`SentinelBackend`]: a master that sentinels name, and whichever it will be
//! - [`RedisBackend`]: the store as the engine sees it, one attempt at a time
//! - `node`: one server, all our connections to it, and what can be asked of it
//! - `confirm`: a connection on which replicas are waited for after each request
//! - `eviction`: whether a server may evict locks
//! - `deployment`: which servers belong together, and which of several deployments a URL means
//! - `watch_registry`: watches that move to another node together with their locks
//! - `format`: what a lock looks like under its key (Format's `RLock`), and its scripts in `lua/`
//! - `keys`: what the keys and channels are called
//! - `cluster_node`: a server as a node of a cluster: its slots and its redirects
//! - `script`: EVALSHA, and EVAL where the server does not know the script
//! - `reply`, `refusal`: what the server answers, and what its errors mean
//! - `kind`: what a server is that does not know a command
//! - `pubsub`: the subscriber, one connection that receives releases for all waiters
//! - `quorum_node`: a server as a node of a quorum: its marker and its votes
//! - `single_flight`: concurrent identical calls share one
//! - `connection`: connections to one server: exclusive, multiplexed, pooled; every wait has a deadline

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
mod server_kind;
mod single_flight;
mod text;
mod watch_registry;

pub use backend::RedisBackend;
pub use scheme::{RedisScheme, SentinelScheme};
pub use sentinel::SentinelBackend;

/// What `lock-cluster` is built from: nodes, and the format of what stands in them. Not for programs: these are the
/// insides of this crate, shown to a crate of the same house and version, and change with any release. A module of its
/// own and not a crate of its own, because everything else here would have to move there with it.
#[doc(hidden)]
pub mod parts {
    pub use crate::address::Address;
    pub use crate::classic::{StepHook, bare_format, open};
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
