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

use super::entry::Entry;
use super::keep::tell_lost;
use super::tenure::Tenure;
use super::turns::Returned;
use super::{Engine, ask};
use crate::backend::{Closing, Failure, Release, TenureId};
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
    pub(crate) fn end_hold(&self, entry: &Arc<Entry>, tenure: &Arc<Tenure>) -> Result<(), Error> {
        self.end_hold_by(entry, tenure, Self::release)
    }

    /// The same, and gives the lock back by `release`.
    pub(super) fn end_hold_by(
        &self,
        entry: &Arc<Entry>,
        tenure: &Arc<Tenure>,
        release: impl FnOnce(&Self, &Arc<Entry>, &Arc<Tenure>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let held = self.still_holds(entry, tenure);
        if held && tenure.end_nested() {
            return Ok(());
        }
        // The parent holds it: whatever a forked child does to it must not reach the store. Nor may the child wait for
        // the entry: whoever had its lock at the fork is not there to let go of it.
        self.refuse_if_forked().map_err(|error| error.on(&tenure.name))?;
        entry.end_hold(tenure);
        if held { release(self, entry, tenure) } else { Err(tenure.lost_error()) }
    }

    /// Stops renewing, so that no renewal can follow the release. False if it ended otherwise already.
    pub(crate) fn give_back(&self, tenure: &Tenure) -> bool {
        let mut inner = tenure.lock();
        if tenure.has_ended() || self.clock.now() >= tenure.valid_until() {
            return false;
        }
        if !mutant("renewal_goes_on_during_release") {
            tenure.set_released(&mut inner);
        }
        true
    }

    /// Everything about a release that comes before the store is asked. Returns the lease; `None` if it is not to be
    /// asked, because somebody of this client has the lock now.
    pub(super) fn begin_release(
        &self,
        entry: &Arc<Entry>,
        tenure: &Arc<Tenure>,
    ) -> Result<Option<LeaseTime>, Error> {
        if self.hand_on(entry, tenure) {
            return Ok(None);
        }
        let lease = tenure.lock().lease;
        if !self.give_back(tenure) {
            self.declare_lost(entry, tenure, LossCause::Expired);
            return Err(tenure.lost_error());
        }
        Ok(Some(lease))
    }

    pub(super) fn release(&self, entry: &Arc<Entry>, tenure: &Arc<Tenure>) -> Result<(), Error> {
        let Some(lease) = self.begin_release(entry, tenure)? else { return Ok(()) };
        #[cfg(feature = "tracing")]
        let span = crate::trace::release(&tenure.name);
        let sent = self.clock.now();
        let outcome = self.send_release(tenure, lease);
        #[cfg(feature = "tracing")]
        crate::trace::ended(&span, &outcome.as_ref().map(Some));
        tenure.close_listeners();
        let now = self.clock.now();
        let told = outcome.as_ref().ok().copied().flatten();
        entry.vacate(self, tenure, Returned { at: now, took: Some(now.since(sent)), told });
        match &outcome {
            Ok(_) => tell_released(&self.events, tenure, now),
            Err(error) => tell_failed(&self.events, tenure, error.clone()),
        }
        outcome.map(drop)
    }

    /// How many clients were told, if the store says that.
    fn send_release(&self, tenure: &Tenure, lease: LeaseTime) -> Result<Option<u32>, Error> {
        let id = tenure.id(lease);
        let mut by = self.command_deadline();
        if !self.abilities.owned {
            by = by.min(tenure.valid_until()); // after that it could free a stranger's
        }
        let (answer, first_unanswered) = self.ask_to_release(&id, tenure.closing(), by);
        let failure = match answer {
            Ok(Release::Freed) => return Ok(None),
            Ok(Release::FreedFor(told)) => return Ok(Some(told)),
            Ok(Release::Gone) => return self.gone(tenure, first_unanswered).map(|()| None),
            Err(failure) => failure,
        };
        let error = failure.into_error();
        if error.is_foreign_format() {
            let loss = end_as_overwritten(&self.events, tenure, error);
            return Err(loss.to_error().on(&tenure.name));
        }
        self.clean_up(id, tenure.closing());
        Err(self.unconfirmed(tenure, self.clock.now(), &error))
    }

    /// Sends a release until the store answers, at most until `by`. Returns also when the first was sent that got no answer.
    ///
    /// Not to be called in a forked child.
    pub(super) fn ask_to_release(
        &self,
        id: &TenureId,
        closing: Closing,
        by: Moment,
    ) -> (Result<Release, Failure>, Option<Moment>) {
        let mut first_unanswered = None;
        loop {
            let sent = self.clock.now();
            // Half of the time for the first send, so that there is time to ask again and hear what came of it. Not
            // where a repetition could free a stranger's lock.
            let is_first = first_unanswered.is_none() && self.abilities.owned;
            let answer_by = if is_first { sent + by.since(sent) / 2 } else { by };
            let failure = match ask(|| self.backend.release(id, closing, answer_by)) {
                Ok(release) => return (Ok(release), first_unanswered),
                Err(failure) => failure,
            };
            if matches!(failure, Failure::Unknown(_)) {
                first_unanswered.get_or_insert(sent);
            }
            let now = self.clock.now();
            if !self.abilities.owned || !failure.error().is_unavailable() || now + PAUSE >= by {
                return (Err(failure), first_unanswered);
            }
            self.clock.wait(&Arc::new(Signal::new()), now + PAUSE);
        }
    }

    /// The store says that it was not ours.
    fn gone(&self, tenure: &Tenure, first_unanswered: Option<Moment>) -> Result<(), Error> {
        if first_unanswered.is_some_and(|sent| sent < tenure.valid_until()) {
            self.events.emit(|| Event::ReleaseUnconfirmed { lock: tenure.name.clone() });
            return Ok(());
        }
        let loss = end_as_gone(&self.events, tenure);
        Err(loss.to_error().on(&tenure.name))
    }

    fn unconfirmed(&self, tenure: &Tenure, now: Moment, cause: &Error) -> Error {
        let inner = tenure.lock();
        let left =
            if inner.overlong { inner.lease.duration() } else { tenure.valid_until().since(now) };
        drop(inner);
        let then = if self.abilities.owned {
            format!(
                "it is tried on in the background, and the lease ends the lock within about {left:.1?} in any case"
            )
        } else if left.is_zero() {
            "it is not sent again, because the lease is over, and the lock may be another's"
                .to_owned()
        } else {
            format!(
                "it is not sent again, because it could free another's lock: that is left to the lease, of which there are {left:.1?}"
            )
        };
        Error::new(cause.kind(), format!("the release was not confirmed: {then}"))
            .with_source(cause.clone())
            .on(&tenure.name)
    }
}

/// Tells that a holding was given back.
pub(super) fn tell_released(events: &Events, tenure: &Tenure, now: Moment) {
    let held = now.since(tenure.since);
    events.emit(|| Event::Released { lock: tenure.name.clone(), held });
}

/// Tells that it was not, as far as anybody knows.
pub(super) fn tell_failed(events: &Events, tenure: &Tenure, error: Error) {
    events.emit(|| Event::ReleaseFailed { lock: tenure.name.clone(), error });
}

/// Something else lives under the key: ours is gone.
pub(super) fn end_as_overwritten(events: &Events, tenure: &Tenure, error: Error) -> Loss {
    tenure.lock().last_failure = Some(error);
    end_as_gone(events, tenure)
}

/// The store says that it was not ours when it was given back: a loss after all, and told as one.
pub(super) fn end_as_gone(events: &Events, tenure: &Tenure) -> Loss {
    let loss = tenure.set_lost(&mut tenure.lock(), LossCause::Gone);
    tell_lost(events, tenure, loss.clone());
    loss
}
