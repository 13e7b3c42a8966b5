//! A master with replicas and sentinels: how clients find it, and what happens to locks in a
//! failover.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Announced addresses that clients cannot reach.
mod addresses;

// Sentinels that cannot reach each other.
mod partition;

// Read-write locks over a failover.
mod read_write;

// Threads and connections of a dropped client.
mod departure;

// Sentinels at different distances that disagree.
mod far_sentinels;

// The discovery of the master.
mod discovery;

// Masters killed with the lock held: the claims of all holders are checked for overlap.
mod failover_safety;

// A fake sentinel.
mod fake_sentinel;

// Addresses that lead to a sentinel of another deployment.
mod foreign_sentinel;

// Fair locks over a failover.
mod fair;

// Failovers: a replica replaces the master.
mod failover;

// The guarantees of each wire format in a failover.
mod formats;

// The examples and the command-line tool.
mod programs;

// Changes of keys that masters report.
mod reports;

// Helpers for clients and holders during a failover.
mod scene;

// Failovers and restarts one after the other, with one lock held.
mod sequence;
// Replicas whose clocks differ from the master's.
mod servers_clocks;

// Permits of semaphores over a failover.
mod semaphores;

// New masters that were never listed as replicas.
mod strangers;

// The signs by which a client notices a new master.
mod switch;

// Double grants if too few replicas had confirmed the lock.
mod unconfirmed;

// A replaced master that does not know of its replacement.
mod replaced_master;
