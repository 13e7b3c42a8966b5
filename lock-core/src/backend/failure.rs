//! [`Failure`]: why a request failed, and what is known of its outcome.

use crate::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a backend, and returns a panic in it as a failure with unknown outcome.
///
/// For backends that consist of others. The engine calls every backend this way.
///
/// # Errors
///
/// Those of the request.
pub fn call_backend<T>(request: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(request)).unwrap_or_else(|_| {
        Err(Failure::Unknown(Error::unavailable(
            "the store's backend panicked; see its message",
        )))
    })
}

/// Why a request failed, and what may have happened in the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The store replied with a refusal: nothing happened.
    Refused(Error),
    /// The request was not sent: nothing can have happened.
    NotSent(Error),
    /// The request was sent, and no reply came: it may have been applied, or may still be.
    Unknown(Error),
    /// The outcome is unknown, and the request can be neither repeated nor rolled back, because the
    /// store cannot tell this owner's lock from another's: the engine gives up.
    Final(Error),
}

impl Failure {
    /// Returns the error.
    #[must_use]
    pub fn error(&self) -> &Error {
        match self {
            Self::Refused(error)
            | Self::NotSent(error)
            | Self::Unknown(error)
            | Self::Final(error) => error,
        }
    }

    /// Returns the error.
    #[must_use]
    pub fn into_error(self) -> Error {
        match self {
            Self::Refused(error)
            | Self::NotSent(error)
            | Self::Unknown(error)
            | Self::Final(error) => error,
        }
    }
}
