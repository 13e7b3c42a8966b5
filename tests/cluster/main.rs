//! Redis Cluster: real nodes that are killed, paused, cut off and failed over, and slots that move
//! between them.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Slots that move between two commands of one attempt.
mod slot_moves_within_an_attempt;

// Threads and connections after a node has left the cluster, or a client is dropped.
mod departure;

// Masters that die, freeze, fail over or come back.
mod failover;

// Masters that are killed while a lock is held, and a judge of what all holders report.
mod failover_safety;

// Fair locks.
mod fair;

// Answers that arrive too late.
mod late_answers;

// What managed services show of a cluster.
mod managed;

// A master that is cut off from the other nodes.
mod partition;

// Read-write locks.
mod read_write;

// Changes of keys that the nodes report.
mod reports;

// Nodes that are reached over TLS, by IPv6, or by names.
mod endpoints;

// Nodes whose answers about their cluster are set by a test.
mod fake_node;

// Which nodes are asked for the slot map, and whose answer counts.
mod map_sources;

// The addresses in the URL.
mod seeds;

// Nodes of another cluster.
mod foreign_nodes;

// Slots that the servers move at once.
mod moved_at_once;

// Grants that replicas confirm.
mod replicas;

// Requests that arrive at the wrong node, or while a slot moves.
mod routing;

// The examples, and many locks at once.
mod programs;

// Servers whose clocks differ.
mod servers_clocks;

// Permits whose slot moves.
mod semaphores;

// Helpers of these tests.
mod scene;

// Masters that are left without a replica.
mod without_replicas;

// Clients that a test stops between two commands.
#[allow(dead_code, reason = "its servers are no cluster's")]
#[path = "../../examples/race_gallery/stage.rs"]
mod stage;
