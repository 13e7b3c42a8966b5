//! The one module through which this crate synchronises: locks, atomics, threads, channels.
//!
//! A normal build re-exports `parking_lot`, `std` and `crossbeam-channel`. Under `cfg(shuttle)`,
//! which only the package `tests/schedules` sets, everything here is a task, a lock or a timer of
//! [shuttle](https://docs.rs/shuttle), which runs one task at a time in an order that a seed
//! decides.

#[cfg(not(shuttle))]
mod system {
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::collections::HashMap;
    pub(crate) use std::hash::RandomState;
    pub(crate) use std::sync::atomic;
    pub(crate) use std::thread;
    pub(crate) use std::thread_local;

    /// The channels that are part of the public interface.
    pub(crate) mod channel {
        pub(crate) use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
    }

    /// Whether the defect of this name is switched on: only ever in `tests/schedules`.
    #[inline(always)]
    pub(crate) const fn mutant(_name: &str) -> bool {
        false
    }
}

#[cfg(shuttle)]
mod scheduled;

#[cfg(shuttle)]
pub use scheduled::*;
#[cfg(not(shuttle))]
pub(crate) use system::*;
