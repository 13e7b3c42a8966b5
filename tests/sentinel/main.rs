//! A master with replicas and sentinels: how clients find it, and what happens to locks in a
//! failover.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

// Sentinels that cannot reach each other.
mod partition;

// What is left of a client.
mod departure;

// How the master is found.
mod discovery;

// Masters that are killed with the lock held, and a judge of what all holders say.
mod failover_safety;

// A sentinel that says what a test wants.
mod fake_sentinel;

// Sentinels of another deployment.
mod foreign_sentinel;

// Another server takes the master's place.
mod failover;

// The same for other wire formats: what each of them promises.
mod formats;

// The examples.
mod programs;

// What goes through the failovers: a client, and a holder.
mod scene;

// By what a client notices that another server is the master.
mod switch;

// What a failover loses when too few replicas are waited for.
mod unconfirmed;

// A master that was replaced and does not know.
mod replaced_master;

// What a waiter asks for, and of which server.
mod waiting;
