//! Ending holds: what a release may answer, and what each answer means.
//!
//! | what the store says | what it means |
//! |---|---|
//! | freed | released |
//! | not ours, to the first request | lost: it was taken from us before |
//! | not ours, to a repetition, the first sent before the local deadline | released by the first |
//! | not ours, to a repetition, the first sent after the local deadline | lost |
//! | something else is under the key | lost |
//! | nothing, for half of the command timeout | it is asked again |
//! | nothing, until the command timeout | unavailable; it is tried on in the background |
//!
//! A dropped guard does not wait for the answer. Its request is on its connection when the guard is
//! gone, before any other of this client about the same lock. What the store answers is dealt with
//! by the thread that reads it; until then it is pending, so a client that is dropped waits for it.

use crate::backend::{AcquisitionId, Failure, NodeId, Release, ReleaseOptions, call_backend};
use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::hold::validity::tell_lost;
use crate::engine::queue::{LocalLock, ReleaseTiming};
use crate::engine::renew::{PendingCleanup, Workers};
use crate::error::Error;
use crate::observe::event::Event;
use crate::observe::event_queue::Events;
use crate::observe::loss::{Loss, LossCause};
use crate::observe::metrics::RequestStart;
use crate::time::{Clock, Moment, Signal};
use std::sync::Arc;
use std::time::Duration;

/// The pause between two sends of a release, because all of them have one command timeout together.
const PAUSE: Duration = Duration::from_millis(10);

/// A hold that was the last one, and ended here; the store is to be asked.
struct Ended {
    at: Moment,
    /// Whether the clock may have skipped time since the store was asked: then that it was gone
    /// before says nothing good.
    is_doubtful: bool,
}

impl Engine {
    /// Ends one hold; the last one releases the lock. Bounded by the command timeout.
    pub(crate) fn end_hold(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<(), Error> {
        let Some(ended) = self.end_locally(lock, acquisition)? else {
            return Ok(());
        };
        let Ended {
            at: sent,
            is_doubtful,
        } = ended;
        let mut ending = Ending {
            engine: self,
            lock,
            acquisition,
            timing: None,
        };
        #[cfg(feature = "tracing")]
        let span = crate::observe::trace::CallSpan::release(&acquisition.name);
        let by = sent + self.settings.command_timeout;
        let (id, options) = acquisition.to_end(sent);
        let (answer, first_unanswered) = self.send_release(&id, options, sent, by);
        let first_unanswered = first_unanswered.filter(|_| !is_doubtful);
        let outcome = self.released(acquisition, answer, first_unanswered);
        #[cfg(feature = "tracing")]
        span.ended(&outcome.as_ref().map(Some));
        let now = self.clock.now();
        let told = outcome.as_ref().ok().copied().flatten();
        ending.timing = Some(ReleaseTiming {
            at: now,
            took: Some(now.since(sent)),
            told,
        });
        drop(ending);
        match &outcome {
            Ok(_) => tell_released(&self.events, acquisition, now),
            // Told as that.
            Err(error) if error.is_lost() => {}
            Err(error) => tell_failed(&self.events, acquisition, error.clone()),
        }
        outcome.map(drop)
    }

    /// The same, without waiting for the store's answer. What it says is told as events.
    pub(crate) fn end_hold_async(&self, lock: &Arc<LocalLock>, acquisition: &Arc<Acquisition>) {
        let Ok(Some(Ended { at: ended, .. })) = self.end_locally(lock, acquisition) else {
            return;
        };
        let mut ending = Ending {
            engine: self,
            lock,
            acquisition,
            timing: None,
        };
        #[cfg(feature = "tracing")]
        let _span = crate::observe::trace::CallSpan::release(&acquisition.name);
        let by = ended + self.settings.command_timeout;
        let (id, options) = acquisition.to_end(ended);
        let release = AsyncRelease {
            events: self.events.clone(),
            clock: Arc::clone(&self.clock),
            workers: Arc::clone(&self.workers),
            lock: Arc::clone(lock),
            acquisition: Arc::clone(acquisition),
            node: self.workers.renewal_node(&acquisition.name),
            start: self.metrics().request_starts(),
            _pending: self.workers.pending_cleanup(),
        };
        *self.async_release.lock() = Some(acquisition.name.clone());
        let asked = call_backend(|| {
            let done = Box::new(move |answer| release.answered(answer));
            self.backend.submit_release(&id, options, by, done);
            Ok(())
        });
        if let Err(failure) = asked {
            // A backend that panicked: whatever it did with the request.
            self.clean_up((id, options));
            tell_failed(
                &self.events,
                acquisition,
                failure.into_error().on(&acquisition.name),
            );
        }
        ending.timing = Some(ReleaseTiming {
            at: self.clock.now(),
            took: None,
            told: None,
        });
    }

    /// Ends one hold. If it was the last one, and the store is to be asked, returns when that was.
    fn end_locally(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<Option<Ended>, Error> {
        let held = self.still_holds(lock, acquisition);
        if held && acquisition.end_nested() {
            return Ok(None);
        }
        // The parent holds it: what a forked child does must not reach the store. Nor may the child
        // wait for the local lock: a thread that had it at the fork is not there to unlock it.
        self.refuse_if_forked()
            .map_err(|error| error.on(&acquisition.name))?;
        lock.end_hold(acquisition);
        if !held {
            return Err(acquisition.lost_error());
        }
        // To the store a writer that goes on reading is a reader from its release on.
        let is_doubtful = !acquisition.doubt_at(self.reading()).is_zero();
        let goes_on_reading = self.is_read_here(&lock.name);
        let handed = match is_doubtful || goes_on_reading {
            true => None,
            false => lock.hand_off(acquisition, self.clock.as_ref()),
        };
        if let Some(since) = handed {
            acquisition.close_listeners();
            self.metrics().handed_off(&acquisition.name);
            tell_released(&self.events, acquisition, since);
            return Ok(None);
        }
        let Some(at) = self.mark_released(acquisition) else {
            self.declare_lost(lock, acquisition, LossCause::Expired);
            return Err(acquisition.lost_error());
        };
        if lock.scope.is_guard() {
            self.timer.disarm(lock); // no other acquisition will find it there
        }
        Ok(Some(Ended { at, is_doubtful }))
    }

    /// Stops renewing, so that no renewal follows the release. Returns when that was; `None` if it
    /// ended already.
    pub(in crate::engine) fn mark_released(&self, acquisition: &Acquisition) -> Option<Moment> {
        let mut inner = acquisition.lock();
        let now = self.clock.now();
        if acquisition.has_ended() || now >= acquisition.valid_until() {
            return None;
        }
        acquisition.set_released(&mut inner);
        Some(now)
    }

    /// What the caller is told; how many clients were, if the store says that.
    fn released(
        &self,
        acquisition: &Acquisition,
        answer: Result<Release, Failure>,
        first_unanswered: Option<Moment>,
    ) -> Result<Option<u32>, Error> {
        match ReleaseOutcome::of(&self.events, acquisition, answer, first_unanswered) {
            ReleaseOutcome::Released(told) => Ok(told),
            ReleaseOutcome::Lost(loss) => Err(loss.to_error().on(&acquisition.name)),
            ReleaseOutcome::Refused(error) => Err(error.on(&acquisition.name)),
            ReleaseOutcome::Unknown(error) => {
                let now = self.clock.now();
                self.clean_up(acquisition.to_end(now));
                Err(unconfirmed(acquisition, now, &error))
            }
        }
    }

    /// Sends a release until the store answers, from `now` on, at most until `by`. Returns also
    /// when the first was sent that got no answer. Not to be called in a forked child.
    pub(in crate::engine) fn send_release(
        &self,
        id: &AcquisitionId,
        options: ReleaseOptions,
        now: Moment,
        by: Moment,
    ) -> (Result<Release, Failure>, Option<Moment>) {
        let (begun, mut sent, mut first_unanswered) = (now, now, None);
        loop {
            // Half of the time for the first send, so that there is time to ask again and hear what
            // came of it; all of it where a request without an answer is not repeated.
            let may_repeat = first_unanswered.is_none() && self.abilities.renewable;
            let answer_by = if may_repeat {
                sent + by.since(sent) / 2
            } else {
                by
            };
            let options = options.after(sent.since(begun));
            let failure = match call_backend(|| self.backend.release(id, options, answer_by)) {
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
            sent = self.clock.now();
        }
    }

    /// Has the answers read that no caller waits for, by a request behind them. Waits until `by`.
    pub(in crate::engine) fn collect_async_releases(&self, by: Moment) {
        // In a statement of its own: a guard that is dropped meanwhile must not wait for the mutex.
        let name = self.async_release.lock().take();
        if let Some(name) = name.filter(|_| self.workers.has_pending_cleanups()) {
            // What it says of the lock does not matter; if it cannot be asked, nothing can be read.
            let _answer = call_backend(|| self.store()?.peek(&name, by));
        }
    }
}

/// A release that has begun: its acquisition has ended here, and no thread of this client asks for
/// the lock before this is dropped.
struct Ending<'a> {
    engine: &'a Engine,
    lock: &'a Arc<LocalLock>,
    acquisition: &'a Arc<Acquisition>,
    /// `None`: a panic came before the store was told, or before its answer was weighed.
    timing: Option<ReleaseTiming>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let Self {
            engine,
            acquisition,
            ..
        } = *self;
        let timing = self.timing.unwrap_or_else(|| {
            let now = engine.clock.now();
            engine.clean_up(acquisition.to_end(now));
            ReleaseTiming {
                at: now,
                took: None,
                told: None,
            }
        });
        acquisition.close_listeners();
        self.lock.released(acquisition, timing);
    }
}

/// What an answer means: the table above.
enum ReleaseOutcome {
    /// With how many clients were told, if the store says that.
    Released(Option<u32>),
    /// Told as an event, too.
    Lost(Loss),
    Refused(Error),
    Unknown(Error),
}

impl ReleaseOutcome {
    /// `first_unanswered`: when the first was sent that got no answer.
    fn of(
        events: &Events,
        acquisition: &Acquisition,
        answer: Result<Release, Failure>,
        first_unanswered: Option<Moment>,
    ) -> Self {
        match answer {
            Ok(Release::Freed) => Self::Released(None),
            Ok(Release::FreedFor(told)) => Self::Released(Some(told)),
            Ok(Release::Gone)
                if first_unanswered.is_some_and(|sent| sent < acquisition.valid_until()) =>
            {
                events.emit(|| Event::ReleaseUnconfirmed {
                    lock: acquisition.name.clone(),
                });
                Self::Released(None)
            }
            Ok(Release::Gone) => Self::Lost(end_as_gone(events, acquisition)),
            Err(failure) if failure.error().is_foreign_format() => {
                acquisition.lock().set_last_failure(failure.into_error());
                Self::Lost(end_as_gone(events, acquisition))
            }
            Err(Failure::Final(error)) => Self::Refused(error),
            Err(failure) => Self::Unknown(failure.into_error()),
        }
    }
}

/// What is needed when the answer to a dropped guard's release comes. Not the engine itself: its
/// end waits for this one's.
struct AsyncRelease {
    events: Events,
    clock: Arc<dyn Clock>,
    workers: Arc<Workers>,
    lock: Arc<LocalLock>,
    acquisition: Arc<Acquisition>,
    /// Which worker cleans up: the thread that reads the answer must not ask the backend for it.
    node: Result<NodeId, Error>,
    start: RequestStart,
    _pending: PendingCleanup,
}

impl AsyncRelease {
    /// The answer has come, or will not. Short, and asks nothing: the thread that reads it is in
    /// the middle of a request of its own.
    fn answered(self, answer: Result<Release, Failure>) {
        let Self {
            events,
            acquisition,
            workers,
            ..
        } = &self;
        events.metrics.release_answered(self.start, &answer);
        match ReleaseOutcome::of(events, acquisition, answer, None) {
            ReleaseOutcome::Released(told) => {
                if let Some(told) = told {
                    self.lock.told(told);
                }
                tell_released(events, acquisition, self.clock.now());
            }
            ReleaseOutcome::Lost(_) => {}
            ReleaseOutcome::Refused(error) => {
                tell_failed(events, acquisition, error.on(&acquisition.name));
            }
            ReleaseOutcome::Unknown(error) => {
                let (id, options) = acquisition.to_end(self.clock.now());
                workers.clean_up(self.node.clone(), id, options);
                tell_failed(events, acquisition, error.on(&acquisition.name));
            }
        }
    }
}

fn unconfirmed(acquisition: &Acquisition, now: Moment, cause: &Error) -> Error {
    let inner = acquisition.lock();
    let left = match inner.overlong {
        true => inner.lease.duration(),
        false => acquisition.valid_until().since(now),
    };
    drop(inner);
    let message = format!(
        "the release was not confirmed: it is tried on in the background, and the lease ends the \
         lock within about {left:.1?} in any case"
    );
    Error::new(cause.kind(), message)
        .with_source(cause.clone())
        .on(&acquisition.name)
}

/// Tells that a lock was released.
fn tell_released(events: &Events, acquisition: &Acquisition, now: Moment) {
    let held = now.since(acquisition.since);
    events.emit(|| Event::Released {
        lock: acquisition.name.clone(),
        held,
    });
}

/// Tells that a release was not confirmed.
pub(in crate::engine) fn tell_failed(events: &Events, acquisition: &Acquisition, error: Error) {
    events.emit(|| Event::ReleaseFailed {
        lock: acquisition.name.clone(),
        error,
    });
}

/// The store says that it was not ours when it was released: a loss after all, and told as one.
fn end_as_gone(events: &Events, acquisition: &Acquisition) -> Loss {
    let loss = acquisition.set_lost(&mut acquisition.lock(), LossCause::Gone);
    tell_lost(events, acquisition, loss.clone());
    loss
}
