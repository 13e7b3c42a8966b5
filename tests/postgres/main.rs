//! Locks in a PostgreSQL database, with faults of the server, of the network and of its users.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Processes that contend, are killed and paused, while the server restarts.
mod contention;
// What a fault of the server or of a connection does to a request, a hold and a wait.
mod faults;
// Standbys that are promoted.
mod failover;
// A pooler in front of the server.
mod pooler;
// Locks that sessions hold.
mod session;
// Tables, rights, and what is refused.
mod setup;
// Encrypted connections, and passwords.
mod access;
// Locks of several stores.
mod several;
// ShedLock in Java, on the same table.
mod shedlock;
// A proxy that loses, delays and halves what is sent.
mod wire;
