//! [`contain`]: catches the panics of handlers and callbacks.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls foreign code; `None` if it panicked, which the panic hook has reported by then.
///
/// For backends: a [`Wake`](crate::backend::Wake) or a callback that panics must not end the thread
/// that calls it.
pub fn contain<T>(callback: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(callback)).ok()
}
