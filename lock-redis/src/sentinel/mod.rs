//! Sentinel: a master that others may take the place of, and the sentinels that say which one it
//! is.
//!
//! - `routing`: [`SentinelBackend`], the store: every request goes to the present master
//! - `master_tracker`: which one that is, and what follows when it is another one
//! - `sentinel_set`: all sentinels together: which master they name
//! - `agreement`: what their answers mean together
//! - `round`: a question to all of them: whose answers are waited for, and which came later
//! - `succession`: whether another server may take the master's place at once
//! - `instance`: one sentinel; `report`: what it says; `answers`: what it said, and when
//! - `diagnosis`: what the sentinels mean for locks
//! - `recent_releases`: what was given back lately, for the next master
//! - `failover_watcher`: the task that hears of failovers; `watcher_signal`: what rouses it

mod agreement;
mod answers;
mod diagnosis;
mod failover_watcher;
mod instance;
mod master_tracker;
mod recent_releases;
mod report;
mod round;
mod routing;
mod sentinel_set;
mod succession;
mod watcher_signal;

pub use routing::SentinelBackend;
