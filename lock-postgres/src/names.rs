//! [`Names`]: the names of locks in the database; and numbers as the database has them.

use lock_core::backend::Failure;
use lock_core::{Config, Error, LockName};
use std::time::Duration;

/// The longest text, in bytes: a row of an index has at most 2,700 bytes.
const MOST_BYTES: usize = 2_000;

/// Converts the names of locks into the texts in the database.
#[derive(Clone)]
pub(crate) struct Names {
    pub(crate) prefix: String,
}

impl Names {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            prefix: config.prefix().to_owned(),
        }
    }

    /// Returns the text of a name.
    pub(crate) fn stored(&self, name: &LockName) -> Result<String, Failure> {
        let stored = [&self.prefix, name.as_str()].concat();
        if stored.contains('\0') {
            return Err(Failure::NotSent(Error::misuse(
                "PostgreSQL has no texts with the character U+0000: choose another name",
            )));
        }
        if stored.len() > MOST_BYTES {
            return Err(Failure::NotSent(Error::misuse(format!(
                "the name and the prefix have {} bytes, and an index of PostgreSQL takes no more \
                 than {MOST_BYTES}",
                stored.len()
            ))));
        }
        Ok(stored)
    }
}

/// Returns a duration in microseconds.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
