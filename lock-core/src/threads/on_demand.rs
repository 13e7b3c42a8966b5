//! [`OnDemandThread`]: a thread that starts with the first work, and ends after it was idle.

use crate::error::Error;
use crate::sync::thread;
use crate::threads::limits::no_thread;
use crate::time::Moment;
use std::time::Duration;

/// Whether the thread runs. Kept under the mutex of its work, so that work added while the thread
/// ends finds it either running or ended.
#[derive(Default)]
pub(crate) struct OnDemandThread {
    running: bool,
    idle_since: Option<Moment>,
}

impl OnDemandThread {
    /// Starts it unless it runs.
    ///
    /// # Errors
    ///
    /// If the system has no thread left.
    pub(crate) fn start(
        &mut self,
        name: impl FnOnce() -> String,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        if !self.running {
            let name = name();
            let attempt = format!("could not start the thread {name}");
            let spawned = thread::Builder::new().name(name).spawn(run);
            spawned.map_err(|failure| no_thread(&attempt, failure))?;
            *self = Self {
                running: true,
                idle_since: None,
            };
        }
        Ok(())
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// Records that the thread has work.
    pub(crate) fn busy(&mut self) {
        self.idle_since = None;
    }

    /// Records that it has none. Returns until when it waits for work; `None`: it must end.
    pub(crate) fn idle(&mut self, now: Moment, longest: Duration) -> Option<Moment> {
        let end = *self.idle_since.get_or_insert(now) + longest;
        if now < end {
            return Some(end);
        }
        self.running = false;
        None
    }
}
