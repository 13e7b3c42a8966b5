//! The cases. Each panics if the promise that it tests is broken; `table.rs` lists all cases.

pub(super) mod client_drop;
pub(super) mod exclusion;
pub(super) mod fencing;
pub(super) mod guard;
pub(super) mod network;
pub(super) mod reentry;
pub(super) mod replication;
pub(super) mod store_acquire;
pub(super) mod store_fair_read_write;
pub(super) mod store_kinds;
pub(super) mod store_permits;
pub(super) mod store_release;
pub(super) mod store_renew;
pub(super) mod store_replicas;
pub(super) mod store_tokens;
pub(super) mod store_watch;
pub(super) mod waiting;
pub(super) mod watchdog;
