//! [`DialTime`]: the time limit of a dial, or of a part of it.

use lock_core::{Clock, Moment};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The end of a dial: a deadline, or the shutdown of the server's connections if that is earlier.
#[derive(Clone, Copy)]
pub(crate) struct DialTime<'a> {
    clock: &'a dyn Clock,
    by: Moment,
    is_over: Option<&'a AtomicBool>,
}

impl<'a> DialTime<'a> {
    pub(crate) fn until(clock: &'a dyn Clock, by: Moment) -> Self {
        Self {
            clock,
            by,
            is_over: None,
        }
    }

    /// Returns this time limit, which also ends when `is_over` becomes `true`.
    pub(super) fn unless(self, is_over: &'a AtomicBool) -> Self {
        Self {
            is_over: Some(is_over),
            ..self
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns the time that is left.
    pub(crate) fn left(&self) -> Duration {
        let is_over = self.is_over.is_some_and(|it| it.load(Ordering::Acquire));
        if is_over {
            Duration::ZERO
        } else {
            self.by.since(self.clock.now())
        }
    }

    /// Returns the first of `parts` equal parts of the time that is left.
    #[cfg(feature = "tls")]
    pub(crate) fn part(self, parts: u32) -> Self {
        Self {
            by: self.now() + self.left() / parts,
            ..self
        }
    }
}
