//! [`contain`]: catches the panics of handlers and callbacks.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls foreign code and returns its result, or `None` if it panicked. The panic hook has reported
/// the panic by then.
///
/// For backends: a panic of a [`Wake`](crate::backend::Wake) or of a callback must not end the
/// backend's thread that calls it.
pub fn contain<T>(callback: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(callback)).ok()
}
