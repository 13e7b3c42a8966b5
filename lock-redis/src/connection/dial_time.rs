//! [`DialTime`]: how long a dial, or a part of it, may take.

use lock_core::{Clock, Moment};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ends at a deadline, or with the connections of the server, whichever is earlier.
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

    /// The same, and no longer than until this is `true`.
    pub(super) fn unless(self, is_over: &'a AtomicBool) -> Self {
        Self {
            is_over: Some(is_over),
            ..self
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// How much of it is left.
    pub(crate) fn left(&self) -> Duration {
        let is_over = self.is_over.is_some_and(|it| it.load(Ordering::Acquire));
        if is_over {
            Duration::ZERO
        } else {
            self.by.since(self.clock.now())
        }
    }

    /// The first of so many equal parts of what is left.
    #[cfg(feature = "tls")]
    pub(crate) fn part(self, parts: u32) -> Self {
        Self {
            by: self.now() + self.left() / parts,
            ..self
        }
    }
}
