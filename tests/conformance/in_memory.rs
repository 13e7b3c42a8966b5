//! The conformance suite on stores in this process, on virtual time: no test waits for a server or
//! for another process.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

use distlock_tests::subjects::memory::{MemoryQuorum, MemorySubject, SeveralSubject};
use distlock_tests::subjects::mount::{Extent, Mount, left_out_cases_fail};
use libtest_mimic::{Arguments, Trial};
use lock_conformance::{
    NEEDS_A_QUEUE, NEEDS_ALL_KINDS, NEEDS_REPLICAS, SINGLE_STORE_ONLY, Subject, VirtualTime,
};
use std::sync::Arc;

/// The errors with which cases that do not apply to a lock on several stores must fail there.
const REASONS: [&str; 3] = ["no one store", "a single client", "it has replicas"];

fn mounts() -> Vec<Mount> {
    let one = || NEEDS_REPLICAS.to_vec();
    let quorum = || [NEEDS_REPLICAS, NEEDS_ALL_KINDS, NEEDS_A_QUEUE].concat();
    let several = || [SINGLE_STORE_ONLY, NEEDS_ALL_KINDS, NEEDS_A_QUEUE].concat();
    vec![
        Mount::new("memory", Extent::Full, one(), || {
            Arc::new(MemorySubject::on(VirtualTime::new().clock()))
        }),
        Mount::new("all_of_three", Extent::Full, several(), || {
            Arc::new(SeveralSubject::all())
        }),
        Mount::new("majority_of_three", Extent::Full, several(), || {
            Arc::new(SeveralSubject::majority())
        }),
        Mount::new("nested", Extent::Full, several(), || {
            Arc::new(SeveralSubject::nested())
        }),
        Mount::new("quorum3", Extent::Full, quorum(), || {
            Arc::new(MemoryQuorum::new(3, 0))
        }),
        Mount::new("quorum5_two_dead", Extent::Full, quorum(), || {
            Arc::new(MemoryQuorum::new(3, 2))
        }),
    ]
}

fn main() {
    let arguments = Arguments::from_args();
    let mut trials: Vec<Trial> = mounts().iter().flat_map(Mount::trials).collect();
    let memory = || Arc::new(MemorySubject::on(VirtualTime::new().clock())) as Arc<dyn Subject>;
    trials.push(left_out_cases_fail(
        "memory",
        NEEDS_REPLICAS,
        &["it has replicas"],
        memory,
    ));
    let several = || Arc::new(SeveralSubject::all()) as Arc<dyn Subject>;
    trials.push(left_out_cases_fail(
        "all_of_three",
        SINGLE_STORE_ONLY,
        &REASONS,
        several,
    ));
    libtest_mimic::run(&arguments, trials).exit();
}
