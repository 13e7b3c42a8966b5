//! Standard output and standard error. A reader that is gone is no reason to panic.

use crate::exit::{self, Failure};
use std::fmt;
use std::io::{self, Write};

/// Writes a line to standard error. Not by `eprintln`, which panics if that is closed.
pub(crate) fn report(what: impl fmt::Display) {
    let _closed = writeln!(io::stderr(), "distlock: {what}");
}

/// Writes to standard output, flushes it, and returns the status of success.
pub(crate) fn write(text: &[u8]) -> Result<u8, Failure> {
    let mut output = io::stdout().lock();
    output.write_all(text).and_then(|()| output.flush()).map(|()| 0).map_err(|error| {
        let what = format!("standard output is not read any more ({error}): keep the pipe open");
        Failure::new(exit::SOFTWARE, what)
    })
}

/// Writes a line to standard output.
pub(crate) fn line(text: &str) -> Result<u8, Failure> {
    write(format!("{text}\n").as_bytes())
}
