//! [`DialTime`]: how long a dial, or a part of it, may take.

use crate::connection::shutdown::ShutdownRegistry;
use lock_core::{Clock, Moment};
use std::time::Duration;

/// Ends at a deadline, or with the connections of the server, whichever is earlier.
#[derive(Clone, Copy)]
pub(crate) struct DialTime<'a> {
    clock: &'a dyn Clock,
    by: Moment,
    shutdown: Option<&'a ShutdownRegistry>,
}

impl<'a> DialTime<'a> {
    pub(crate) fn until(clock: &'a dyn Clock, by: Moment) -> Self {
        Self { clock, by, shutdown: None }
    }

    /// The same, and no longer than until `shutdown` is shut.
    pub(super) fn while_open(self, shutdown: &'a ShutdownRegistry) -> Self {
        Self { shutdown: Some(shutdown), ..self }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// How much of it is left.
    pub(crate) fn left(&self) -> Duration {
        let is_shut = self.shutdown.is_some_and(ShutdownRegistry::is_shut);
        if is_shut { Duration::ZERO } else { self.by.since(self.clock.now()) }
    }

    /// The first of so many equal parts of what is left.
    pub(crate) fn part(self, parts: u32) -> Self {
        Self { by: self.now() + self.left() / parts, ..self }
    }
}
