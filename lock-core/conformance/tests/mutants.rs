//! The tests of the conformance suite: every case must fail on the mutant that it exists for.
//!
//! A separate test binary, because its time is virtual: no test may wait for another process.

use lock_conformance::{Case, Matrix, Mutation, Pairs, cases};

/// The number of cases that run at a time. All of them share each step of the virtual time.
const AT_A_TIME: usize = 128;

#[test]
fn every_case_fails_on_its_mutant() {
    let _matrix = run(Pairs::Decisive);
}

/// A store may run the core cases only, because one of them fails on each mutant.
#[test]
fn core_cases_catch_every_mutant() {
    let matrix = run(Pairs::Core);
    assert_eq!(matrix.missed_by(Case::is_core), []);
    // The core cases of stores without replicas miss mutants of replicas only.
    let mut missed = matrix.missed_by(|case| case.is_core() && !case.needs_replicas());
    missed.retain(|mutation| !mutation.is_of_replicas());
    assert_eq!(missed, []);
    // The cases of the lock kinds are not counted, because each of them has its own mutant.
    let of_mutexes: Vec<_> = cases()
        .iter()
        .filter(|case| !case.needs_all_kinds())
        .collect();
    assert!(of_mutexes.iter().filter(|case| case.is_core()).count() < of_mutexes.len() / 3);
}

#[test]
#[ignore = "takes a minute, and shows no more than which case catches what"]
fn every_case_runs_on_every_mutant() {
    let _matrix = run(Pairs::All);
}

/// Runs these pairs, prints the matrix, and fails if it has complaints.
fn run(pairs: Pairs) -> Matrix {
    let matrix = Matrix::run(pairs, AT_A_TIME);
    println!(
        "{} cases on {} mutants\n\n{matrix}",
        cases().len(),
        Mutation::ALL.len()
    );
    let complaints = matrix.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    matrix
}
