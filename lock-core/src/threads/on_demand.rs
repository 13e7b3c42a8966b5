//! [`OnDemandThread`]: a thread that starts with the first work, and ends after an idle time.

use crate::error::Error;
use crate::sync::thread;
use crate::threads::limits::no_thread;
use crate::time::Moment;
use std::time::Duration;

/// The state of a thread that runs only while it has work. Stored under the same mutex as the work:
/// otherwise work that is added just as the thread ends could be left without a thread.
#[derive(Default)]
pub(crate) struct OnDemandThread {
    running: bool,
    idle_since: Option<Moment>,
}

impl OnDemandThread {
    /// Starts the thread unless it runs.
    ///
    /// # Errors
    ///
    /// If the system has no more threads.
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

    /// Records that the thread has no work. Returns the time until which the thread waits for work,
    /// or `None` if it must end.
    pub(crate) fn idle(&mut self, now: Moment, longest: Duration) -> Option<Moment> {
        let end = *self.idle_since.get_or_insert(now) + longest;
        if now < end {
            return Some(end);
        }
        self.running = false;
        None
    }
}
