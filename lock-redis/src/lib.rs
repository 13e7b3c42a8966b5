//! distlock on one Redis server, or on a master with its replicas and sentinels.
//!
//! From the top down:
//!
//! - [`RedisScheme`], [`SentinelScheme`]: which URLs lead here
//! - `url`: what a URL says of servers: addresses, credentials, TLS
//! - `standalone`: the one server that a URL names
//! - `sentinel`: [`SentinelBackend`], the master that the sentinels name, as a store of locks
//! - `classic`: stores of locks that do not say who holds them
//! - `node`: one server and all our connections to it, as a store of locks; alone, or as a node of
//!   a cluster or of a quorum
//! - `format`: what stands under a lock's key
//! - `pubsub`: the subscriber, one connection that receives releases for all waiters
//! - `keys`: the names of keys and channels
//! - `connection`: connections to one server: exclusive, multiplexed, pooled; every wait has a
//!   deadline; and what the server's errors mean
//! - `lua`: the scripts

#![forbid(unsafe_code)]

mod classic;
mod connection;
mod format;
mod keys;
mod lua;
mod node;
mod pubsub;
mod scheme;
mod sentinel;
mod standalone;
mod url;

pub use scheme::{RedisScheme, SentinelScheme};
pub use sentinel::SentinelBackend;

/// What `lock-cluster` is built from: nodes, and the wire format. Not a public interface: it
/// changes with any release.
#[doc(hidden)]
pub mod parts {
    pub use crate::classic::{StepHook, bare_format, open_any_format};
    pub use crate::connection::JOINED;
    pub use crate::connection::{Address, AddressMap, ReplicaCount};
    pub use crate::format::{Format, NodePage, OPTION as FORMAT};
    pub use crate::keys::SLOTS;
    pub use crate::node::cluster::{Redirect, Shard, Shards};
    pub use crate::node::eviction::OPTION as EVICTION;
    pub use crate::node::quorum::{
        Admission, Agreement, MarkerRequest, Member, Members, MissingMember, NodeView,
        ProposalReply, Response, ServerInfo, ServerState, VoteTerms,
    };
    pub use crate::node::{
        Account, Deployment, Granted, Node, NodeDiagnosis, NodeSettings, RelocatableWatch,
        ReplicaAddresses, RequestMode, ServerClock, StoreKind, WatchRegistry, compare_clocks,
        deployments,
    };
    pub use crate::pubsub::TRACKING;
    pub use crate::standalone::standalone;
}
