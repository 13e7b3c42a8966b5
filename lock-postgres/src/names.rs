//! [`Names`]: the names of locks in the database.

use lock_core::backend::Failure;
use lock_core::{Config, Error, LockName};

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
