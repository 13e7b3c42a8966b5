//! Sentinel: a master that others may take the place of, and the sentinels that say which one it
//! is.
//!
//! - [`backend`](SentinelBackend): the store as the engine sees it: every request goes to the
//!   present master
//! - `tracker`: which one that is, and what follows when it is another one
//! - `sentinel_set`: all sentinels together: which master they name
//! - `member`: one sentinel, and what it says
//! - `freed`: what was given back lately, for the next master
//! - `watcher`: the thread that hears of failovers

mod backend;
mod failover_watcher;
mod instance;
mod master_tracker;
mod recent_releases;
mod sentinel_set;

pub use backend::SentinelBackend;
