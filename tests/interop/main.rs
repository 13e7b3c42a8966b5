//! Other libraries' locks on the same key: real ones, from their registries, each in a program of its own language
//! (`peers/`), which `tests/interop.sh` builds.
//!
//! Every library that shares a wire format with us sits the same cases; what it can and cannot do stands in its row.
//! `DISTLOCK_INTEROP_SKIP=java,go` leaves languages out, and says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

/// Prints a line also where a test's output is kept back: versions, what was left out, and what was measured, are for
/// whoever reads of a run that passed.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stderr(), $($words)*).expect("somewhere to write to");
    }};
}

// Where the libraries' programs are.
mod built;

// What every library must do beside us, and we beside it.
mod cases;

// What the documents say of the versions.
mod documents;

// The libraries, and what each of them can do.
mod libraries;

// Those that have their lock in a plain string.
mod neighbours;

// Our side of the protocol: the same verbs, by distlock.
mod ours;

// A program of another language, and the protocol.
mod peer;

// Which versions of the libraries are tested.
mod pins;

// What only Redisson has.
mod redisson;

// One server, one peer and us.
mod scene;
