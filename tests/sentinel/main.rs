//! A master with replicas and sentinels: who finds it, and what becomes of locks when another server takes its place.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

// How the master is found.
mod discovery;

#[allow(dead_code, unused_imports, reason = "a toolbox: not every tool is in use at every moment")]
#[path = "../it/harness/mod.rs"]
mod harness;

// A sentinel that says what a test wants.
mod liar;

// Another server takes the master's place.
mod failover;

// The examples.
mod programs;

// What goes through the failovers: a client, and a holder.
mod scene;
