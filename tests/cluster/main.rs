//! Redis Cluster: real nodes, killed, paused, cut off, failed over, and slots on their way between
//! them.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Slots that move between two commands of one attempt.
mod slot_moves_within_an_attempt;

// What is left of nodes that left, and of a client.
mod departure;

// Masters that die, are frozen, give way or come back.
mod failover;

// Masters that are killed with the lock held, and a judge of what all holders say.
mod failover_safety;

// Locks in the order of arrival.
mod fair;

// Answers that come too late.
mod late_answers;

// What managed services show of a cluster.
mod managed;

// A master that the others cannot reach any more.
mod partition;

// Read-write locks.
mod read_write;

// Changes of keys that the nodes report.
mod reports;

// However nodes are reached: over TLS, by IPv6, by names.
mod endpoints;

// Nodes that say of their cluster what a test wants.
mod fake_node;

// Which nodes are asked for the slot map, and whose word counts.
mod map_sources;

// The addresses in the URL.
mod seeds;

// Nodes of another cluster.
mod foreign_nodes;

// Slots that the servers move at once.
mod moved_at_once;

// Grants that replicas confirm.
mod replicas;

// Requests that come to the wrong node, or while a slot moves.
mod routing;

// The examples, and many locks at once.
mod programs;

// Servers whose clocks differ.
mod servers_clocks;

// Permits whose slot moves.
mod semaphores;

// What the tests here have in common.
mod scene;

// Masters that are left without a replica.
mod without_replicas;

// Clients that are held up between two commands.
#[allow(dead_code, reason = "its servers are no cluster's")]
#[path = "../../examples/race_gallery/stage.rs"]
mod stage;
