//! The one place where panics of backends, handlers and callbacks are caught.

use crate::backend::Failure;
use crate::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls foreign code; `None` if it panicked, which the panic hook has reported by then.
///
/// For backends: a [`Wake`](crate::backend::Wake) or a callback that panics must not end the thread
/// that calls it.
pub fn contain<T>(callback: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(callback)).ok()
}

/// Calls a backend; a panic in it is a failure with unknown outcome.
///
/// For backends that are made of others; the engine calls every backend like this.
///
/// # Errors
///
/// Those of the request.
pub fn call_backend<T>(request: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    contain(request).unwrap_or_else(|| {
        Err(Failure::Unknown(Error::unavailable("the store's backend panicked; see its message")))
    })
}
