//! The engine of distlock: everything about locking that is the same on every store.
//!
//! The map, from what a program holds down to what a store does:
//!
//! - names: [`Client`] makes a [`Mutex`] (held by threads) or an [`OwnedMutex`] (held by guards)
//! - several locks as one: [`MultiLock`] takes all of them, [`MajorityLock`] most of them
//! - vocabulary: [`DistLock`] has the verbs, [`LockOptions`] says how, [`LockGuard`] and
//!   [`OwnedGuard`] are the holding, [`Interrupt`] ends a wait, [`Loss`] and [`Event`] are the
//!   news, [`Notification`] brings them, [`Error`] is the one error
//! - policy: the engine, private here
//! - mechanism: [`backend`] is what a store implements, [`MemoryBackend`] the one in this process's
//!   memory
//! - settings: [`Config`] from a URL or a file, [`Schemes`] for the stores that a URL can name
//! - time: [`Clock`], which all waiting goes through
//! - the tests for stores: `conformance`, with the feature of that name
//!
//! Most programs use the `distlock` crate, which is this one with the Redis stores.

#![forbid(unsafe_code)]

pub mod backend;
mod backoff;
mod client;
mod clock;
mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counters;
mod engine;
mod error;
mod event;
mod guard;
mod holder;
mod interrupt;
mod lease;
mod limits;
mod lock;
mod loss;
mod memory;
mod multi;
mod mutex;
mod name;
mod notices;
mod notification;
mod on_demand;
mod options;
mod owner;
mod panics;
mod parts;
mod process;
mod replication;
mod scheme;
#[cfg(not(shuttle))]
mod sync;
#[cfg(shuttle)]
pub mod sync;
mod token;
#[cfg(feature = "tracing")]
pub mod trace;

pub use backend::Backend;
pub use client::{Client, ClientBuilder};
pub use clock::{Clock, ManualClock, Moment, Signal, SystemClock, Woken};
pub use config::{Config, Credentials, CredentialsProvider, Host, Secret, TokenPolicy};
pub use counters::Counters;
pub use engine::acquisition::GuardState;
pub use error::{Error, ErrorKind, MemberOutcome, MemberResult};
pub use event::{Event, EventHandler, WarningKind};
pub use guard::{LockGuard, OwnedGuard};
pub use interrupt::Interrupt;
pub use lease::{Lease, LeaseTime};
pub use lock::DistLock;
pub use loss::{Loss, LossCause};
pub use memory::{MemoryBackend, MemoryScheme};
pub use multi::{MajorityLock, MultiLock};
pub use mutex::{Mutex, OwnedMutex};
pub use name::LockName;
pub use notices::Notices;
pub use notification::Notification;
pub use options::LockOptions;
pub use owner::{ClientId, OwnerId, OwnerText};
pub use replication::{InsufficientReplicas, OnInsufficientReplicas, Replicas, Replication};
pub use scheme::{Context, Scheme, Schemes};
pub use token::{FencingToken, TokenRange};

/// News come by its channels: of a [loss](LockGuard::losses), of an [interrupt](Interrupt::fired).
/// Its `select!` waits for them beside other channels.
#[cfg(not(shuttle))]
pub use crossbeam_channel;
