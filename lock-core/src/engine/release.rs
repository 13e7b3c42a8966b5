//! Giving back: what a release may answer, and what each answer means.
//!
//! | what the store says | what it means |
//! |---|---|
//! | freed | released |
//! | not ours, to the first request | lost: it was taken from us before |
//! | not ours, to a repetition, the first sent before the local deadline | released: the first request did it (event "unconfirmed") |
//! | not ours, to a repetition, the first sent after the local deadline | lost |
//! | something else is under the key | lost |
//! | nothing, for half of the command time-out | it is asked again |
//! | nothing, until the command time-out | unavailable; it is tried on in the background, and the lease ends it |

use super::acquisition::Acquisition;
use super::entry::Entry;
use super::keep::tell_lost;
use super::turns::Returned;
use super::{Engine, ask};
use crate::backend::{AcquisitionId, Failure, Release, ReleaseOptions};
use crate::clock::{Moment, Signal};
use crate::error::Error;
use crate::event::{Event, Events};
use crate::lease::LeaseTime;
use crate::loss::{Loss, LossCause};
use crate::sync::mutant;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two sends of a release.
const PAUSE: Duration = Duration::from_millis(10);

impl Engine {
    /// Ends one hold; the last one gives the lock back to the store. Bounded by the command time-out.
    pub(crate) fn end_hold(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<(), Error> {
        self.end_hold_by(entry, acquisition, Self::release)
    }

    /// The same, and gives the lock back by `release`.
    pub(super) fn end_hold_by(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
        release: impl FnOnce(&Self, &Arc<Entry>, &Arc<Acquisition>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let held = self.still_holds(entry, acquisition);
        if held && acquisition.end_nested() {
            return Ok(());
        }
        // The parent holds it: whatever a forked child does to it must not reach the store. Nor may the child wait for
        // the entry: whoever had its lock at the fork is not there to let go of it.
        self.refuse_if_forked().map_err(|error| error.on(&acquisition.name))?;
        entry.end_hold(acquisition);
        if held { release(self, entry, acquisition) } else { Err(acquisition.lost_error()) }
    }

    /// Stops renewing, so that no renewal can follow the release. False if it ended otherwise already.
    pub(crate) fn give_back(&self, acquisition: &Acquisition) -> bool {
        let mut inner = acquisition.lock();
        if acquisition.has_ended() || self.clock.now() >= acquisition.valid_until() {
            return false;
        }
        if !mutant("renewal_goes_on_during_release") {
            acquisition.set_released(&mut inner);
        }
        true
    }

    /// Everything about a release that comes before the store is asked. Returns the lease; `None` if it is not to be
    /// asked, because somebody of this client has the lock now.
    pub(super) fn begin_release(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<Option<LeaseTime>, Error> {
        if self.hand_on(entry, acquisition) {
            return Ok(None);
        }
        let lease = acquisition.lock().lease;
        if !self.give_back(acquisition) {
            self.declare_lost(entry, acquisition, LossCause::Expired);
            return Err(acquisition.lost_error());
        }
        Ok(Some(lease))
    }

    pub(super) fn release(
        &self,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<(), Error> {
        let Some(lease) = self.begin_release(entry, acquisition)? else { return Ok(()) };
        #[cfg(feature = "tracing")]
        let span = crate::trace::release(&acquisition.name);
        let sent = self.clock.now();
        let outcome = self.send_release(acquisition, lease);
        #[cfg(feature = "tracing")]
        crate::trace::ended(&span, &outcome.as_ref().map(Some));
        acquisition.close_listeners();
        let now = self.clock.now();
        let told = outcome.as_ref().ok().copied().flatten();
        entry.vacate(self, acquisition, Returned { at: now, took: Some(now.since(sent)), told });
        match &outcome {
            Ok(_) => tell_released(&self.events, acquisition, now),
            Err(error) => tell_failed(&self.events, acquisition, error.clone()),
        }
        outcome.map(drop)
    }

    /// How many clients were told, if the store says that.
    fn send_release(
        &self,
        acquisition: &Acquisition,
        lease: LeaseTime,
    ) -> Result<Option<u32>, Error> {
        let id = acquisition.id(lease);
        let by = self.command_deadline();
        let (answer, first_unanswered) = self.ask_to_release(&id, acquisition.closing(), by);
        let failure = match answer {
            Ok(Release::Freed) => return Ok(None),
            Ok(Release::FreedFor(told)) => return Ok(Some(told)),
            Ok(Release::Gone) => return self.gone(acquisition, first_unanswered).map(|()| None),
            Err(Failure::Final(error)) => return Err(error.on(&acquisition.name)),
            Err(failure) => failure,
        };
        let error = failure.into_error();
        if error.is_foreign_format() {
            let loss = end_as_overwritten(&self.events, acquisition, error);
            return Err(loss.to_error().on(&acquisition.name));
        }
        self.clean_up(id, acquisition.closing());
        Err(self.unconfirmed(acquisition, self.clock.now(), &error))
    }

    /// Sends a release until the store answers, at most until `by`. Returns also when the first was sent that got no answer.
    ///
    /// Not to be called in a forked child.
    pub(super) fn ask_to_release(
        &self,
        id: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> (Result<Release, Failure>, Option<Moment>) {
        let mut first_unanswered = None;
        loop {
            let sent = self.clock.now();
            // Half of the time for the first send, so that there is time to ask again and hear what came of it.
            let answer_by = if first_unanswered.is_none() { sent + by.since(sent) / 2 } else { by };
            let failure = match ask(|| self.backend.release(id, closing, answer_by)) {
                Ok(release) => return (Ok(release), first_unanswered),
                Err(failure) => failure,
            };
            if matches!(failure, Failure::Unknown(_)) {
                first_unanswered.get_or_insert(sent);
            }
            let now = self.clock.now();
            let is_final =
                matches!(failure, Failure::Final(_)) || !failure.error().is_unavailable();
            if is_final || now + PAUSE >= by {
                return (Err(failure), first_unanswered);
            }
            self.clock.wait(&Arc::new(Signal::new()), now + PAUSE);
        }
    }

    /// The store says that it was not ours.
    fn gone(
        &self,
        acquisition: &Acquisition,
        first_unanswered: Option<Moment>,
    ) -> Result<(), Error> {
        if first_unanswered.is_some_and(|sent| sent < acquisition.valid_until()) {
            self.events.emit(|| Event::ReleaseUnconfirmed { lock: acquisition.name.clone() });
            return Ok(());
        }
        let loss = end_as_gone(&self.events, acquisition);
        Err(loss.to_error().on(&acquisition.name))
    }

    fn unconfirmed(&self, acquisition: &Acquisition, now: Moment, cause: &Error) -> Error {
        let inner = acquisition.lock();
        let left = if inner.overlong {
            inner.lease.duration()
        } else {
            acquisition.valid_until().since(now)
        };
        drop(inner);
        let message = format!(
            "the release was not confirmed: it is tried on in the background, and the lease ends the lock within about \
             {left:.1?} in any case"
        );
        Error::new(cause.kind(), message).with_source(cause.clone()).on(&acquisition.name)
    }
}

/// Tells that a holding was given back.
pub(super) fn tell_released(events: &Events, acquisition: &Acquisition, now: Moment) {
    let held = now.since(acquisition.since);
    events.emit(|| Event::Released { lock: acquisition.name.clone(), held });
}

/// Tells that it was not, as far as anybody knows.
pub(super) fn tell_failed(events: &Events, acquisition: &Acquisition, error: Error) {
    events.emit(|| Event::ReleaseFailed { lock: acquisition.name.clone(), error });
}

/// Something else lives under the key: ours is gone.
pub(super) fn end_as_overwritten(events: &Events, acquisition: &Acquisition, error: Error) -> Loss {
    acquisition.lock().last_failure = Some(error);
    end_as_gone(events, acquisition)
}

/// The store says that it was not ours when it was given back: a loss after all, and told as one.
pub(super) fn end_as_gone(events: &Events, acquisition: &Acquisition) -> Loss {
    let loss = acquisition.set_lost(&mut acquisition.lock(), LossCause::Gone);
    tell_lost(events, acquisition, loss.clone());
    loss
}
