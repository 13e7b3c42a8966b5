//! `std::thread` over shuttle's threads, as far as this crate needs it. Counts the running threads.

use super::time::count_thread;
use std::io;

pub use shuttle::thread::{JoinHandle, yield_now};

/// A builder of counted threads, as `std::thread::Builder`.
#[derive(Debug, Default)]
pub struct Builder(shuttle::thread::Builder);

impl Builder {
    /// Makes a builder of a thread without a name.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the thread's name.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self(self.0.name(name))
    }

    /// Starts the thread, and counts it until it ends.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn spawn<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        count_thread(1);
        self.0.spawn(move || {
            let _running = Running;
            work()
        })
    }
}

struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        count_thread(-1);
    }
}
