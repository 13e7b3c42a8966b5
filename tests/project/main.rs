//! The project itself: its examples, its documents, and the tools of its tests.
//!
//! `REDIS_SERVER=PATH` runs everything on another server's binary, `DISTLOCK_TEST_SCALE=3` gives a
//! slow machine three times as long.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// The documents' numbers and names.
mod documents;

// The examples, run as a user runs them.
mod examples;

// The races of old algorithms: each happens with one format, and not with another.
mod gallery;

// What no lock can promise, by GUARANTEES: each test shows the failure.
mod guarantees;

// What one library offers to another.
mod interface;

// No circle of imports between modules.
mod modules;

// The tools for servers at a distance and on addresses of their own.
mod networks;

// The dependencies of a program that uses the crates, and the files that they publish.
mod packages;

// The README's commands, links and names.
mod readme;

// No secret in anything that can be printed.
mod secrets;

// The tools that all tests share.
mod selfcheck;

// What a program sees of the library without an import of a trait.
mod surface;
