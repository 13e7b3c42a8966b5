//! `std::thread` over shuttle's, as far as this crate needs it; the threads are counted.

use super::time::count_thread;
use std::io;

pub use shuttle::thread::{JoinHandle, yield_now};

/// `std::thread::Builder`.
#[derive(Debug, Default)]
pub struct Builder(shuttle::thread::Builder);

impl Builder {
    /// A thread without a name.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a name.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self(self.0.name(name))
    }

    /// Starts it.
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
