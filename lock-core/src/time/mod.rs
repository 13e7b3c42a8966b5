//! Clocks, which all waits of the library use, and a manual clock for tests.

// Also, from the top down: pauses that grow (`backoff`), leases in whole milliseconds (`lease`),
// and the wrapper that contains the panics of an application's clock (`contained_clock`).

pub(crate) mod backoff;
mod clock;
pub(crate) mod contained_clock;
pub(crate) mod lease;

pub use clock::{Clock, ManualClock, Moment, Signal, SystemClock, Woken};
