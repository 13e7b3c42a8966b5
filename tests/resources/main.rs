//! Tests that count threads, connections or processor time, or watch a rhythm: each in a process of
//! its own, one after the other. Cargo runs test binaries one at a time, so nothing else of the
//! suite is in their way.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

// A backend that is gone leaves no thread and no connection behind.
mod backend_drop;

// The rhythm of renewals, many locks at once, and what the watchdog costs.
mod renewals;

// What a client starts, and that it is gone with it.
mod client_threads;

// How much goes to a log when a server is gone.
mod log_of_an_outage;

// What goes to a log, at the finest level.
mod log;

// How often waiters ask the store, in which order they are served, how fast a wait ends.
mod waiting;
