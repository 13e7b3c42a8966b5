//! Releases whose answer nobody waits for: those of guards that are dropped.
//!
//! The request has left when the guard is gone, in order before whatever this client asks about the same lock next. What
//! the store answers is seen to by whoever reads it, by the same table as in [`release`](super::release): what was not
//! confirmed is cleaned up, and the events tell what the caller was not there to hear. Until then it is in doubt, so a
//! client that goes waits for it.

use super::Engine;
use super::acquisition::Acquisition;
use super::entry::Entry;
use super::release::{end_as_gone, end_as_overwritten, tell_failed, tell_released};
use super::turns::Returned;
use crate::backend::{AcquisitionId, Failure, NodeId, Release, ReleaseOptions};
use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::event::Events;
use crate::watchdog::lane::{InDoubt, Lanes};
use std::sync::{Arc, Weak};

/// What is needed when the answer comes. Not the engine itself: its end waits for this one's.
struct Unheard {
    events: Events,
    clock: Arc<dyn Clock>,
    lanes: Arc<Lanes>,
    engine: Weak<Engine>,
    entry: Arc<Entry>,
    acquisition: Arc<Acquisition>,
    id: AcquisitionId,
    closing: ReleaseOptions,
    /// Where it is cleaned up if need be: whoever hears the answer may not ask the backend for it.
    lane: Result<NodeId, Error>,
    _in_doubt: InDoubt,
}

impl Engine {
    /// Ends one hold like [`end_hold`](Self::end_hold), but does not wait for the store's answer to a release.
    pub(crate) fn drop_hold(&self, entry: &Arc<Entry>, acquisition: &Arc<Acquisition>) {
        // Whoever wants to know calls `unlock`; here the events have told it.
        let _told = self.end_hold_by(entry, acquisition, Self::release_unheard);
    }

    fn release_unheard(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<(), Error> {
        let Some(lease) = self.begin_release(entry, acquisition)? else { return Ok(()) };
        #[cfg(feature = "tracing")]
        let _span = crate::trace::release(&acquisition.name);
        let unheard = Unheard {
            events: self.events.clone(),
            clock: Arc::clone(&self.clock),
            lanes: Arc::clone(&self.lanes),
            engine: Weak::clone(&self.this),
            entry: Arc::clone(entry),
            acquisition: Arc::clone(acquisition),
            id: acquisition.id(lease),
            closing: acquisition.closing(),
            lane: self.lanes.renewal_node(&acquisition.name),
            _in_doubt: self.lanes.in_doubt(),
        };
        let (id, closing) = (unheard.id.clone(), unheard.closing);
        *self.unheard.lock() = Some(acquisition.name.clone());
        let asked = self.ask(|backend| {
            let done = Box::new(move |answer| unheard.heard(answer));
            backend.submit_release(&id, closing, self.command_deadline(), done);
            Ok(())
        });
        if let Err(failure) = asked {
            // A backend that panicked: whatever it did with the request.
            self.clean_up(acquisition.id(lease), closing);
            tell_failed(&self.events, acquisition, failure.into_error().on(&acquisition.name));
        }
        acquisition.close_listeners();
        let returned = Returned { at: self.clock.now(), took: None, told: None };
        entry.vacate(self, acquisition, returned);
        Ok(())
    }

    /// Has the answers read that nobody waits for, by asking something that stands behind them. Waits until `by` at most.
    pub(super) fn gather_unheard(&self, by: Moment) {
        if let Some(name) = self.unheard.lock().take()
            && self.lanes.has_doubts()
        {
            // What it says about the lock is of no interest, and if it cannot be asked, neither could be heard more.
            let _answer = self.ask(|backend| backend.peek(&name, by));
        }
    }
}

impl Unheard {
    /// The answer has come, or will not. Short, and asks nothing: whoever reads is in the middle of a request of its own.
    fn heard(self, answer: Result<Release, Failure>) {
        let Self { events, acquisition, clock, .. } = &self;
        match answer {
            Ok(Release::Freed) => tell_released(events, acquisition, clock.now()),
            Ok(Release::FreedFor(told)) => {
                self.entry.told(told);
                tell_released(events, acquisition, clock.now());
            }
            Ok(Release::Gone) => drop(end_as_gone(events, acquisition)),
            Err(failure) if failure.error().is_foreign_format() => {
                drop(end_as_overwritten(events, acquisition, failure.into_error()));
            }
            Err(Failure::Final(error)) => {
                tell_failed(events, acquisition, error.on(&acquisition.name));
            }
            Err(failure) => {
                let Self { lanes, lane, engine, id, closing, .. } = &self;
                lanes.clean_up_in(lane.clone(), engine, id.clone(), *closing);
                tell_failed(events, acquisition, failure.into_error().on(&acquisition.name));
            }
        }
    }
}
