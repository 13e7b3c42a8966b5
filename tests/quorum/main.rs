//! The quorum: the exam that every store sits, servers in every kind of trouble, and what its promises rest on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

// One node's clock is wrong.
mod clocks;

// The same over TLS.
mod encrypted;

// Ways through the model, on real nodes.
mod replay;

// What nobody waits for any more, and what becomes of it.
mod left;

// Others who lock with plain keys on the same servers.
mod neighbours;

// What is no quorum.
mod refused;

// Nodes that are dead, frozen, slow, or forgetful.
mod trouble;

// The rules that every node keeps, in memory and as a script.
mod rules;

// What it costs, and what it is worth.
mod shown;
