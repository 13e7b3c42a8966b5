//! lock-core with shuttle's primitives and with mutants, for tests.
//!
//! `build` makes the copy of its sources that is compiled here.

#![forbid(unsafe_code)]
// The examples in the copied documentation are tested in lock-core.
#![cfg(not(doctest))]

pub mod mutants;
pub mod sync;

include!(concat!(env!("OUT_DIR"), "/lock-core/src/lib.rs"));
