//! The conformance suite on stores in this process, on virtual time: no server, and no other
//! process, is waited for here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

use distlock_tests::subjects::memory::{MemoryQuorum, MemorySubject, SeveralSubject};
use distlock_tests::subjects::mount::{Extent, Mount};
use libtest_mimic::{Arguments, Trial};
use lock_core::conformance::{NEEDS_REPLICAS, SINGLE_STORE_ONLY};
use std::sync::Arc;

fn mounts() -> Vec<Mount> {
    let one = || NEEDS_REPLICAS.to_vec();
    let several = || SINGLE_STORE_ONLY.to_vec();
    vec![
        Mount::new("memory", Extent::Full, one(), || Arc::new(MemorySubject::new())),
        Mount::new("all_of_three", Extent::Full, several(), || Arc::new(SeveralSubject::all())),
        Mount::new("majority_of_three", Extent::Full, several(), || {
            Arc::new(SeveralSubject::majority())
        }),
        Mount::new("nested", Extent::Full, several(), || Arc::new(SeveralSubject::nested())),
        Mount::new("quorum3", Extent::Full, one(), || Arc::new(MemoryQuorum::new(3, 0))),
        Mount::new("quorum5_two_dead", Extent::Full, one(), || Arc::new(MemoryQuorum::new(3, 2))),
    ]
}

fn main() {
    let arguments = Arguments::from_args();
    let trials: Vec<Trial> = mounts().iter().flat_map(Mount::trials).collect();
    libtest_mimic::run(&arguments, trials).exit();
}
