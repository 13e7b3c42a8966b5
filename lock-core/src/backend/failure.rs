//! [`Failure`]: the reason why a request failed, and what is known of its outcome.

use crate::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a backend, and converts a panic of the backend into [`Failure::Unknown`].
///
/// The engine sends every request to a backend in this way. A backend that consists of other
/// backends should do so, too.
///
/// # Errors
///
/// The failure that `request` returns, or [`Failure::Unknown`] if it panics.
pub fn call_backend<T>(request: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(request)).unwrap_or_else(|_| {
        Err(Failure::Unknown(Error::unavailable(
            "the store's backend panicked; see its message",
        )))
    })
}

/// The reason why a request failed, and its possible effect in the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The store replied with a refusal, and did nothing.
    Refused(Error),
    /// The request was not sent, so nothing can have happened.
    NotSent(Error),
    /// The request was sent, and no reply arrived: the store may have applied the request, or may
    /// still do so.
    Unknown(Error),
    /// The outcome is unknown, and the request can be neither repeated nor rolled back, because the
    /// store does not record the owner of a lock. The engine reports the error and does not repeat
    /// the request.
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
