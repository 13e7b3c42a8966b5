//! Stores that run the conformance suite, and how they are mounted.

pub mod format;
pub mod memory;
pub mod mount;
pub mod own_pool;
pub mod postgres;
pub mod quorum;
pub mod store;
