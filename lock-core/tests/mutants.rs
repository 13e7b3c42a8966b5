//! The tests of the conformance suite: every case must fail on the mutant that it exists for.
//!
//! A test binary of its own, because its time is virtual: nothing here may wait for the outside.

use lock_core::conformance::{Case, Matrix, Mutation, Pairs, cases};

/// How many cases run at a time: each step of the time is taken by all of them together.
const AT_A_TIME: usize = 128;

#[test]
fn every_case_fails_on_its_mutant() {
    let _matrix = run(Pairs::Decisive);
}

/// So a store that runs only the core cases is as good as tested: what a mutant does wrong, one of
/// them finds.
#[test]
fn the_core_cases_catch_every_mutant() {
    let matrix = run(Pairs::Core);
    assert_eq!(matrix.missed_by(Case::is_core), []);
    // Also those that a store without replicas can run, but for what only a store with replicas can
    // do wrong.
    let mut missed = matrix.missed_by(|case| case.is_core() && !case.needs_replicas());
    missed.retain(|mutation| !mutation.is_of_replicas());
    assert_eq!(missed, []);
    assert!(cases().iter().filter(|case| case.is_core()).count() < cases().len() / 3);
}

#[test]
#[ignore = "takes a minute, and shows no more than which case catches what"]
fn every_case_meets_every_mutant() {
    let _matrix = run(Pairs::All);
}

/// Runs these, prints what came of it, and fails if anything is wrong.
fn run(pairs: Pairs) -> Matrix {
    let matrix = Matrix::run(pairs, AT_A_TIME);
    println!("{} cases on {} mutants\n\n{matrix}", cases().len(), Mutation::ALL.len());
    let complaints = matrix.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    matrix
}
