//! The conformance suite on real servers: every case on every kind of store, topology and format.
//!
//! The tests are listed when the program starts: a mount lists only the cases that apply to it. By
//! default all of them run on mounts of `Extent::Full`, the core cases on mounts of `Extent::Core`,
//! and none on the others. The rest is ignored unless asked for (`--include-ignored`, as
//! `tests/run.sh --all` does).

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

mod mounts;

use distlock_tests::subjects::mount::Mount;
use libtest_mimic::Arguments;

fn main() {
    let arguments = Arguments::from_args();
    let mounts = mounts::all();
    let mut trials: Vec<_> = mounts.iter().flat_map(Mount::trials).collect();
    trials.extend(mounts::left_out_cases_fail());
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Dropped before the exit, which runs no destructors: the destructor of a server fails if the
    // server has refused a command of the library.
    drop(mounts);
    conclusion.exit();
}
