//! Tests of the project itself: its examples, its documents, and the tools of its tests.
//!
//! `REDIS_SERVER=PATH` runs the tests with another server binary. `LOCK_TEST_SCALE=3` makes the
//! time bounds three times as long, for a slow machine.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// The numbers and names in the documents.
mod documents;

// The examples, run as a user runs them.
mod examples;

// The races of old algorithms: each happens with one format, and is prevented by another.
mod gallery;

// What no lock can promise, according to GUARANTEES: each test shows the failure.
mod guarantees;

// What `lock-redis` offers to `lock-cluster`.
mod interface;

// Checks that no modules import each other in a circle.
mod modules;

// The tools for servers at a distance and on addresses of their own.
mod networks;

// The dependencies of a program that uses the crates, and the files that the crates publish.
mod packages;

// The README's commands, links and names.
mod readme;

// Secrets, which nothing that the library prints may contain.
mod secrets;

// The tools that all tests share.
mod selfcheck;

// What a program sees of the library without an import of a trait.
mod surface;
