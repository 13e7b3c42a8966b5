//! Tests that count threads, connections, memory or processor time, or measure intervals: each in
//! a process of its own, one after the other. Cargo runs test binaries one at a time, so no other
//! test of the suite disturbs them.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Threads and connections of a dropped backend.
mod backend_drop;

// The processor time of clients whose sockets cannot be polled.
mod poll_errors;

// Many processes whose server is restarted.
mod reconnect_storm;

// The intervals of renewals, many locks at once, and the cost of the watchdog.
mod renewals;

// Losses among a hundred thousand held locks.
mod many_losses;

// The memory of released names.
mod released_names;

// Threads and connections of a dropped client.
mod client_threads;

// The number of log lines in an outage.
mod log_of_an_outage;

// The content of a log at the finest level.
mod log;

// Metrics with the names of locks, in the recorder of a process.
mod metrics_by_name;

// How often waiters send requests, in which order they are served, and how fast a wait ends.
mod waiting;
