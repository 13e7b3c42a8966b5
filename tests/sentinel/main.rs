//! A master with replicas and sentinels: how clients find it, and what happens to locks in a
//! failover.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Announced addresses.
mod addresses;

// Sentinels that cannot reach each other.
mod partition;

// Read-write locks.
mod read_write;

// Threads and connections of a dropped client.
mod departure;

// Sentinels at different distances that disagree.
mod far_sentinels;

// How the master is found.
mod discovery;

// Masters killed with the lock held: the claims of all holders are checked for overlap.
mod failover_safety;

// A scripted sentinel.
mod fake_sentinel;

// Sentinels of another deployment.
mod foreign_sentinel;

// Locks in the order of arrival.
mod fair;

// Another server takes the master's place.
mod failover;

// Failovers with other wire formats.
mod formats;

// The examples.
mod programs;

// Changes of keys that the masters report.
mod reports;

// Helpers: clients and holders that go through a failover.
mod scene;

// Failovers and restarts one after the other.
mod sequence;
// Servers whose clocks differ.
mod servers_clocks;

// Permits over a failover.
mod semaphores;

// Servers that are named and were never listed as replicas.
mod strangers;

// The signs by which a client notices a new master.
mod switch;

// What a failover loses when too few replicas are waited for.
mod unconfirmed;

// A master that was replaced and does not know it.
mod replaced_master;

// The requests of a waiter, and the server that gets them.
