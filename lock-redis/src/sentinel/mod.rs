//! Sentinel: a master that another server may replace, and the sentinels that name the present
//! master.
//!
//! - `routing`: [`SentinelBackend`], the store: every request goes to the present master
//! - `master_tracker`: the present master, and the change to another one
//! - `sentinel_set`: all sentinels together, and the master that they name
//! - `agreement`: the master that the sentinels' answers together name
//! - `round`: a query of all sentinels: which answers it waits for, and what later ones cause
//! - `succession`: the check whether a server may take the master's place at once
//! - `instance`: one sentinel; `report`: its reply to a query; `answers`: its last replies and
//!   messages
//! - `diagnosis`: findings about the sentinels: consequences of their state for locks
//! - `recent_releases`: recent releases, to repeat on the next master
//! - `failover_watcher`: the task that is notified of failovers; `watcher_signal`: its wake-ups

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
