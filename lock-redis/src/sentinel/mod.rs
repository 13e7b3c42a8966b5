//! Sentinel: a master that others may take the place of, and the sentinels that say which one it is.
//!
//! - [`backend`](SentinelBackend): the store as the engine sees it: every request goes to the present master
//! - `generations`: which one that is, and what follows when it is another one
//! - `council`: all sentinels together: who they say is master
//! - `member`: one sentinel, and what it says
//! - `freed`: what was given back lately, for the next master
//! - `lookout`: the thread that hears of failovers

mod backend;
mod council;
mod freed;
mod generations;
mod lookout;
mod member;

pub use backend::SentinelBackend;
