//! Locks of other libraries on the same keys as ours. Each library comes from its registry, in a
//! program of its own language (`peers/`), which `tests/interop.sh` builds.
//!
//! Every library that shares a wire format with us has the same cases; its `Library` says what it
//! can and cannot do. `LOCK_TEST_TIER=all` tests all libraries, otherwise only the newest Redisson
//! and redis-py are tested; `DISTLOCK_INTEROP_SKIP=java,go` leaves languages out. The tests are
//! listed at run time, so that omitted tests are counted as ignored.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

/// Prints a line even if the output of tests is captured: versions, omissions and measured times
/// matter in a run that passed, too.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stderr(), $($words)*).expect("somewhere to write to");
    }};
}

// Where the libraries' programs are.
mod built;

// What is tested of every library together with ours.
mod cases;

// The versions that the documents name.
mod documents;

// A key that one side holds, and the earliest end of its lease.
mod held_key;

// Failures that a late machine excuses.
mod late;

// The libraries, and what each of them can do.
mod libraries;

// Libraries whose lock is a plain string.
mod foreign_clients;

// Our side of the protocol: the same verbs, by distlock.
mod ours;

// A program of another language, and the protocol.
mod peer;

// Which versions of the libraries are tested.
mod pins;

// Programs that are kept for the next test.
mod pool;

// What only Redisson has.
mod redisson;

// One server, one peer and us.
mod scene;

// The tests of a run, by tier, and how many run at a time.
mod suite;

use libtest_mimic::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(suite::AT_A_TIME);
    let mut suite = suite::Suite::of_tier();
    // The longest tests come first: otherwise the last one would run alone at the end.
    redisson::mount(&mut suite);
    libraries::mount(&mut suite);
    foreign_clients::mount(&mut suite);
    documents::mount(&mut suite);
    suite::mount(&mut suite);
    let conclusion = libtest_mimic::run(&arguments, suite.into_trials());
    if !arguments.list {
        suite::print_slowest();
    }
    conclusion.exit_code()
}
