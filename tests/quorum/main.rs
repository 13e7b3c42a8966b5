//! Tests of the quorum: servers and clocks in every kind of trouble, its membership, its token
//! rules, and real nodes against the model.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Addresses that lead to another server than before, and servers that are not members.
mod addresses;

// Nodes whose clocks are wrong.
mod clocks;

// Members that some clients miss, or all.
mod missing;

// The choice of the members, as the servers record it.
mod membership;

// A quorum over TLS.
mod encrypted;

// Paths through the model, replayed on real nodes.
mod replay;

// Requests with unknown outcome, and their cleanup.
mod cleanup;

// Foreign clients that lock with plain keys on the same servers.
mod foreign_redlock;

// Sets of servers that are refused as a quorum.
mod configuration;
mod distance;

// Nodes that are dead, frozen or slow, or have lost their data.
mod node_failures;

// Changes of keys that the servers report.
mod reports;

// Votes that are given again, and holds that survive one failure after another.
mod votes;

// The rules of proposed tokens, for a node in memory and for the script.
mod token_rules;

// What a quorum costs, and what it protects from.
mod requests;
