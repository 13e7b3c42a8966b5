//! Mutexes, atomics, threads, channels and the machine's clock, as this crate imports them.
//!
//! The package `tests/schedules` compiles this crate with another module in place of this one, in
//! which a seed decides the order of the threads and time is virtual. Other modules must therefore
//! not import these items from elsewhere.

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

/// The machine's clock.
pub(crate) mod time {
    use rustix::time::{ClockId, clock_gettime};

    /// Returns the nanoseconds since the machine started, as [`SystemClock`](crate::SystemClock)
    /// counts them.
    pub(crate) fn nanos() -> u64 {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: ClockId = ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: ClockId = ClockId::Monotonic;
        let time = clock_gettime(CLOCK);
        let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        u64::try_from(nanos).unwrap_or(0)
    }
}
