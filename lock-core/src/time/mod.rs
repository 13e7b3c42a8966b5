//! Clocks: the one that all waits ask, and those for tests.

// Besides them, from the top down: pauses that grow (`backoff`), leases in whole milliseconds
// (`lease`), and a program's own clock, whose panics end no thread (`contained_clock`).

pub(crate) mod backoff;
mod clock;
pub(crate) mod contained_clock;
pub(crate) mod lease;

pub use clock::{Clock, ManualClock, Moment, Signal, SystemClock, Woken};
