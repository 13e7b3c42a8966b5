//! The engine of distlock: the behaviour of locks that all stores share.
//!
//! From the interface of a program to the interface of a store:
//!
//! - locks: [`Client`] makes a [`Mutex`] (held by threads) or an [`OwnedMutex`] (held by guards);
//!   [`DistLock`] has the methods, [`LockOptions`] the options of an acquisition
//! - other kinds of locks: [`RwLock`] for readers and writers, [`Semaphore`] for permits
//! - [`Election`]: one leader among all clients
//! - several locks as one: [`MultiLock`] requires all of them, [`MajorityLock`] a majority
//! - guards and reports: [`LockGuard`] and [`OwnedGuard`] are holds, [`Interrupt`] ends a wait,
//!   [`Notification`] receives a [`Loss`], an [`EventHandler`] receives each [`Event`]; [`Error`]
//!   is the error type
//! - policy: the engine (private)
//! - mechanism: a store implements [`backend`]; [`MemoryBackend`] is the in-memory store
//! - settings: [`Config`], [`Schemes`] for the stores that a URL can name
//! - time: [`Clock`], for all waits
//! - tests of stores: the crate `lock-conformance`
//!
//! Most programs use the `distlock` crate, which adds the Redis stores.

#![forbid(unsafe_code)]

// The modules from the top down; none uses a module above it: `api`, `engine`, `memory`, `config`,
// `observe`, `call`, `backend`, `threads`, `time`, and the files of this folder.

mod api;
pub mod backend;
mod call;
pub mod config;
mod engine;
mod error;
mod kind;
mod memory;
mod name;
mod name_rules;
mod observe;
mod panics;
mod sync;
mod threads;
pub mod time;

/// Tools for operators: the held locks of a store, findings about its state, and counters.
pub mod admin {
    pub use crate::api::client::Locks;
    pub use crate::backend::diagnosis::{Finding, FindingLevel};
    pub use crate::backend::permit::PermitId;
    pub use crate::observe::counters::Counters;
    pub use crate::observe::event::{ServerData, WarningKind};
}

#[cfg(feature = "toml")]
pub use api::client::ClientSet;
pub use api::client::{Client, ClientBuilder, Locks, builder};
pub use api::election::{Election, LeadershipChange};
pub use api::guard::{LockGuard, OwnedGuard};
pub use api::lock::DistLock;
pub use api::multi::{MajorityLock, MultiLock};
pub use api::mutex::{Mutex, OwnedMutex};
pub use api::read_write::{ReadLock, RwLock, WriteLock};
pub use api::semaphore::Semaphore;
pub use backend::Backend;
pub use backend::diagnosis::{Finding, FindingLevel};
pub use backend::owner::{ClientId, OwnerId, OwnerLabel, OwnerText};
pub use backend::permit::PermitId;
pub use backend::replication::{
    InsufficientReplicas, OnInsufficientReplicas, Replicas, Replication,
};
pub use backend::token::{FencingToken, TokenRange};
pub use call::interrupt::Interrupt;
pub use call::notification::Notification;
pub use call::options::LockOptions;
#[cfg(feature = "toml")]
pub use config::ConfigSet;
pub use config::scheme::{Context, Scheme, Schemes};
pub use config::{
    Config, Credentials, CredentialsProvider, Host, LockOrder, Secret, Setting, TokenPolicy,
    WriterPriority,
};
pub use engine::acquisition::GuardState;
pub use error::{Error, ErrorKind, MemberOutcome, MemberResult};
pub use kind::LockKind;
pub use memory::{MemoryBackend, MemoryScheme};
pub use name::LockName;
pub use observe::counters::Counters;
pub use observe::event::{Event, EventHandler, ServerData, WarningKind};
pub use observe::loss::{Loss, LossCause};
pub use observe::notices::{Notices, OpenConnection};
pub use time::lease::{Lease, LeaseTime};
#[doc(inline)]
pub use time::{Clock, ManualClock, Moment, Signal, SystemClock, Woken};

#[cfg(feature = "metrics")]
pub use observe::metrics;
#[cfg(feature = "tracing")]
pub use observe::trace;

/// The library of the channels of [losses](LockGuard::losses) and [interrupts](Interrupt::fired).
/// Its `select!` waits for these channels together with others.
pub use crossbeam_channel;
