//! The exam of the exam: every case must fail on the flaw that it exists for.

use lock_core::conformance::{Flaw, Matrix, cases};

/// How many cases run at a time. They sleep for most of it.
const AT_A_TIME: usize = 128;

#[test]
fn every_case_fails_on_the_flaw_it_exists_for() {
    let matrix = Matrix::examine(AT_A_TIME);
    println!("{} cases on {} broken stores\n\n{matrix}", cases().len(), Flaw::ALL.len());
    for reason in matrix.reasons() {
        println!("{reason}");
    }
    let complaints = matrix.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
