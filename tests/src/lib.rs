//! Helpers that the tests share: servers, proxies, raw connections, clocks, second processes,
//! bounded waits.
//!
//! The helpers read the state of a store through connections of their own and not through the
//! library: otherwise a defect of the library could hide itself.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "it is read beside its callers"
)]
#![allow(clippy::len_without_is_empty, reason = "a cluster is never empty")]
#![allow(clippy::new_without_default, reason = "it starts something")]
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "it is not published"
)]

pub mod addresses;
pub mod authority;
pub mod child;
pub mod claims;
pub mod cluster;
pub mod contenders;
pub mod distance;
pub mod guards;
pub mod hanging_file;
pub mod lifeline;
pub mod log;
pub mod metrics;
pub mod own_process;
pub mod postgres;
pub mod probe;
pub mod process;
pub mod proxy;
pub mod queue;
pub mod quorum;
pub mod redis;
pub mod replica_clocks;
pub mod replicas;
pub mod reports;
pub mod resp;
pub mod rights;
pub mod router;
pub mod sentinel;
pub mod subjects;
pub mod time;
pub mod time_of_day;
pub mod version;
pub mod wall;
