//! [`EngineHandle`]: the handle of an engine that lock handles and guards share. Its drop ends the
//! client.

use super::Engine;
use super::hold::detached::Detached;
use crate::backend::call_backend;
use crate::time::{Clock, SystemClock};
use std::ops::Deref;
use std::sync::Arc;

/// The handle of an engine that lock handles and guards share. It is dropped with the last of them,
/// which ends the client.
///
/// The engine's threads hold the [`Engine`] itself while they work. If the drop of the engine ended
/// the client, one of these threads might run that drop, and the end of the process could interrupt
/// it.
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
            // A thread of the parent that held a mutex of the engine at the fork does not exist in
            // the child, so a drop that locks this mutex would never return. Leak the child's copy
            // instead.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.end();
    }
}

impl EngineHandle {
    /// Releases detached holds, collects pending answers, ends the threads and closes the backend.
    fn end(&self) {
        // No thread can end a detached hold any more: the client's last handle is gone.
        let detached = std::mem::take(&mut *self.detached.lock());
        for Detached { acquisition, .. } in detached.into_values().flatten() {
            if let Some(now) = self.mark_released(&acquisition) {
                self.clean_up(acquisition.to_end(now));
            }
        }
        // One command timeout for all steps. Pending answers get half of it, so that time is left
        // to repeat unconfirmed releases.
        let until = SystemClock.now() + self.settings.command_timeout;
        self.collect_async_releases(self.clock.now() + self.settings.command_timeout / 2);
        self.timer.stop();
        self.workers.stop(until);
        // Caught here: a panic of the backend must not stop the drop.
        let _told = call_backend(|| {
            self.store()?.close(until);
            Ok(())
        });
    }
}
