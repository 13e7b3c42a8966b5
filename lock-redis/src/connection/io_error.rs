//! The error texts of broken connections.

use super::{Server, tls};
use lock_core::Error;
use std::io::{self, ErrorKind};

impl Server {
    /// Returns the error for a failure that prevented this server from doing `what`.
    pub(super) fn io_error(&self, what: &str, failure: io::Error) -> Error {
        if let Some(error) = tls::explain(self, &failure) {
            return error;
        }
        let message = match failure.kind() {
            ErrorKind::TimedOut => format!("{self} did not {what} in time"),
            _ => format!("the connection to {self} broke before it could {what}"),
        };
        Error::unavailable(message).with_source(failure)
    }
}
