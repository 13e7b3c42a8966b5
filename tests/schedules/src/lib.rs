//! A copy of lock-core for tests: with shuttle's primitives, and with mutants in it.
//!
//! The build script in `build` copies the sources of lock-core, and this crate compiles the copy.

#![forbid(unsafe_code)]
// The examples in the copied documentation are tested in lock-core.
#![cfg(not(doctest))]

pub mod mutants;
pub mod sync;

include!(concat!(env!("OUT_DIR"), "/lock-core/src/lib.rs"));
