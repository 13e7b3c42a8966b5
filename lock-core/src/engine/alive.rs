//! [`Alive`]: what handles and guards have of an engine, and how it ends when the last of them goes.

use super::{Detached, Engine};
use crate::clock::{Clock, SystemClock};
use crate::sync::mutant;
use std::ops::Deref;
use std::sync::Arc;

/// An engine that is in use. Handles and guards share one; when the last of them goes, so does this, and the client ends
/// on that very thread.
///
/// The watchdog's threads have the engine itself while they work. Were its end the engine's own, they would have it, or
/// be cut off in it by the end of the process, if the last handle went in that moment: whoever dropped it would have
/// returned before anything was given back.
pub(crate) struct Alive(pub(super) Arc<Engine>);

impl Deref for Alive {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if self.is_forked() {
            // Our threads, and whoever had a lock of ours at the fork, are not here: a drop that takes such a lock
            // would never end. So all of it stays, in memory that the child got for nothing.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.end();
    }
}

impl Engine {
    /// Gives back what is left, hears what was not heard, ends the watchdog, and lets the store send what it has.
    fn end(&self) {
        // Nobody can reach what was detached and never unlocked any more: give it back.
        let detached = std::mem::take(&mut *self.detached.lock());
        for Detached { acquisition, .. } in detached {
            if !mutant("end_forgets_detached") && self.give_back(&acquisition) {
                let lease = acquisition.lock().lease;
                self.clean_up(acquisition.id(lease), acquisition.closing());
            }
        }
        // One command time-out for all of it, and half of that to hear what was not heard yet, so
        // that there is time to try again what was not confirmed.
        let until = SystemClock.now() + self.settings.command_timeout;
        self.gather_unheard(self.clock.now() + self.settings.command_timeout / 2);
        self.timer.stop();
        self.lanes.stop(until);
        // A panic in it is told, and ends nothing here.
        let _told = self.ask(|store| {
            store.leave(until);
            Ok(())
        });
    }
}
