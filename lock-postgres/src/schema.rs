//! The text of the tables and functions, and their version.

use lock_core::Error;

/// The version of the tables and functions. A client works with this version only.
pub(crate) const VERSION: &str = "distlock 1";

/// The statements, with `@s@` for the schema, `@c@` for the beginning of the channels' names and
/// `@v@` for the version.
const STATEMENTS: &str = include_str!("schema.sql");

/// Returns the beginning of the names of the channels on which releases are published.
pub(crate) fn channel_prefix(schema: &str) -> String {
    format!("distlock:{schema}:")
}

/// Returns the statements that make the tables and functions.
pub(crate) fn statements(schema: &str) -> String {
    STATEMENTS
        .replace("@s@", &format!("\"{schema}\""))
        .replace("@c@", &format!("''{}''", channel_prefix(schema)))
        .replace("@v@", VERSION.trim_start_matches("distlock "))
}

/// Checks the version of the tables that a server has. `found` is the comment on the table.
pub(crate) fn check(found: Option<&str>, schema: &str, server: &str) -> Result<(), Error> {
    match found {
        Some(VERSION) => Ok(()),
        Some(other) => Err(Error::configuration(format!(
            "the schema `{schema}` on {server} is of another version of distlock ({other:?}, and \
             not {VERSION:?}): locks of two schemas do not exclude each other, so stop all clients \
             of that version before you use another schema by `schema=`"
        ))),
        None => Err(Error::configuration(format!(
            "there are no tables of distlock in the schema `{schema}` on {server}: run `distlock \
             postgres init` once"
        ))),
    }
}
