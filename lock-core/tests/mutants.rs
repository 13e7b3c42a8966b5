//! The tests of the conformance suite: every case must fail on the mutant that it exists for.
//!
//! A test binary of its own, because its time is virtual: nothing here may wait for the outside.

use lock_core::conformance::{Flaw, Matrix, cases};

/// How many cases run at a time: each step of the time is taken by all of them together.
const AT_A_TIME: usize = 32;

#[test]
fn every_case_fails_on_the_flaw_it_exists_for() {
    must_be_right(&Matrix::examine(AT_A_TIME));
}

#[test]
#[ignore = "takes a minute"]
fn every_flaw_meets_every_case() {
    must_be_right(&Matrix::examine_all(AT_A_TIME));
}

fn must_be_right(matrix: &Matrix) {
    println!("{} cases on {} broken stores\n\n{matrix}", cases().len(), Flaw::ALL.len());
    let complaints = matrix.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
