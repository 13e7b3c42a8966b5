//! Micro-benchmarks of what costs no round trip, through the public API on the in-memory store.
