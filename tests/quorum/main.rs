//! The quorum: the exam that every store sits, servers in every kind of trouble, and what its
//! promises rest on.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Addresses that lead to another server, and membership.
mod addresses;

// One node's clock is wrong.
mod clocks;

// Members that are missing for some clients or all.
mod missing;

// The choice of the members, on the servers.
mod membership;

// The same over TLS.
mod encrypted;

// Ways through the model, on real nodes.
mod replay;

// Requests with unknown outcome, and their cleanup.
mod cleanup;

// Others who lock with plain keys on the same servers.
mod foreign_redlock;

// What is no quorum.
mod configuration;
mod distance;

// Nodes that are dead, frozen, slow, or forgetful.
mod node_failures;

// Changes of keys that the servers report.
mod reports;

// Votes that are given again, and holds that survive one failure after another.
mod votes;

// The rules that every node keeps, in memory and as a script.
mod token_rules;

// What it costs, and what it is worth.
mod requests;
