//! The integration suite: real servers, real processes, and the exam that every store sits.
//!
//! One binary, so that it links once. `REDIS_SERVER=PATH` runs everything on another server's binary,
//! `DISTLOCK_TEST_SCALE=3` gives a slow machine three times as long.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

// The examples, run as a user runs them.
mod examples;

// Bad days: the network loses, delays and garbles, and the server is in every kind of trouble.
mod faults;

// Servers, second processes, other eyes on the store, and bounded waiting.
#[allow(dead_code, reason = "a toolbox: not every tool is in use at every moment")]
mod harness;

// The harness itself.
mod selfcheck;

// The same exam for every store, and proof that it can be failed.
mod conformance;

// The README's commands, links and names.
mod readme;

// No secret in anything that can be printed.
mod secrets;

// What can only be seen on a real server: requests and keys.
mod redis;

// Several locks as one, on several servers.
mod several;

// Memory and Redis side by side, with the same random commands.
mod side_by_side;

// The server's time of day jumps.
mod servers_clock;

// The documents' numbers and names.
mod documents;

// The races of old algorithms, seen to happen and seen cured.
mod gallery;

// What nobody can promise, seen to fail.
mod guarantees;
