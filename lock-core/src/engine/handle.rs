//! [`EngineHandle`]: an engine in use, and how the client ends when the last handle is dropped.

use super::Engine;
use super::hold::detached::Detached;
use crate::backend::call_backend;
use crate::time::{Clock, SystemClock};
use std::ops::Deref;
use std::sync::Arc;

/// An engine that is in use. Handles and guards share one; the thread that drops the last of them
/// ends the client.
///
/// The engine's threads keep the engine itself while they work. If its own drop ended the client,
/// one of them could do that, or be cut off in it by the end of the process.
pub(crate) struct EngineHandle(pub(super) Arc<Engine>);

impl Deref for EngineHandle {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if self.is_forked() {
            // A thread of the parent that had a mutex of ours at the fork is not here: a drop that
            // takes it would never end. So all of it stays, in memory that the child got for
            // nothing.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.end();
    }
}

impl EngineHandle {
    /// Releases what is left, collects answers, ends the threads, and lets the store send the rest.
    fn end(&self) {
        // What was detached and never unlocked cannot be reached any more.
        let detached = std::mem::take(&mut *self.detached.lock());
        for Detached { acquisition, .. } in detached.into_values().flatten() {
            if let Some(now) = self.mark_released(&acquisition) {
                self.clean_up(acquisition.to_end(now));
            }
        }
        // One command time-out for all of it, and half of that for answers that are under way, so
        // that there is time to try again what was not confirmed.
        let until = SystemClock.now() + self.settings.command_timeout;
        self.collect_async_releases(self.clock.now() + self.settings.command_timeout / 2);
        self.timer.stop();
        self.workers.stop(until);
        // A panic in it is told, and ends nothing here.
        let _told = call_backend(|| {
            self.store()?.close(until);
            Ok(())
        });
    }
}
