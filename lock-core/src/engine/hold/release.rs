//! Ending holds: the possible answers to a release, and the meaning of each.
//!
//! | answer of the store | meaning |
//! |---|---|
//! | freed | released |
//! | not held, and no earlier send went unanswered | lost before the release |
//! | not held; the first unanswered send was before the local deadline | released by that send |
//! | not held; the first unanswered send was after the local deadline | lost |
//! | a value that is not a lock is under the key | lost |
//! | none for half of the command timeout | the request is repeated, if the lock can be renewed |
//! | none until the command timeout | unavailable; the release is repeated in the background |
//! | [`Failure::Final`] | the error is returned; the release is not repeated |
//!
//! If the clock may have skipped time, and for a dropped guard, "not held" always means lost.
//!
//! A dropped guard does not wait for the answer. Its request is sent or queued on the connection
//! before the drop returns, ahead of any later request of this client about the lock. The thread
//! that reads the answer also handles the answer. Until then the release counts as a pending
//! cleanup, so the end of the client waits for the release.

use crate::backend::{AcquisitionId, Failure, NodeId, Release, ReleaseOptions, call_backend};
use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::hold::validity::tell_lost;
use crate::engine::queue::LocalLock;
use crate::engine::renew::{PendingCleanup, Workers};
use crate::error::Error;
use crate::observe::event::Event;
use crate::observe::event_queue::Events;
use crate::observe::loss::{Loss, LossCause};
use crate::observe::metrics::RequestStart;
use crate::time::{Clock, Moment, Signal};
use std::sync::Arc;
use std::time::Duration;

/// The pause between two sends of a release: short, because all sends share one command timeout.
const PAUSE: Duration = Duration::from_millis(10);

/// The local end of the last hold on an acquisition. The release must still be sent.
struct Ended {
    at: Moment,
    /// True if the clock may have skipped time since the last confirmation. Then the lease may have
    /// ended unnoticed, so the answer "not held" counts as a loss, even to a repetition.
    is_doubtful: bool,
}

impl Engine {
    /// Ends one hold. The end of the last hold also hands the lock off to another thread, or
    /// releases it in the store. The release takes at most the command timeout.
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
            sent: None,
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
        ending.sent = Some(now);
        drop(ending);
        match &outcome {
            Ok(_) => tell_released(&self.events, acquisition, now),
            // The loss was already reported.
            Err(error) if error.is_lost() => {}
            Err(error) => tell_failed(&self.events, acquisition, error.clone()),
        }
        outcome.map(drop)
    }

    /// Ends one hold. The end of the last hold also hands the lock off to another thread, or sends
    /// the release. Does not wait for the store's answer, which is reported as an event.
    pub(crate) fn end_hold_async(&self, lock: &Arc<LocalLock>, acquisition: &Arc<Acquisition>) {
        let Ok(Some(Ended { at: ended, .. })) = self.end_locally(lock, acquisition) else {
            return;
        };
        let mut ending = Ending {
            engine: self,
            lock,
            acquisition,
            sent: None,
        };
        #[cfg(feature = "tracing")]
        let _span = crate::observe::trace::CallSpan::release(&acquisition.name);
        let by = ended + self.settings.command_timeout;
        let (id, options) = acquisition.to_end(ended);
        let release = AsyncRelease {
            events: self.events.clone(),
            clock: Arc::clone(&self.clock),
            workers: Arc::clone(&self.workers),
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
            // The backend panicked, and may or may not have sent the request.
            self.clean_up((id, options));
            tell_failed(
                &self.events,
                acquisition,
                failure.into_error().on(&acquisition.name),
            );
        }
        ending.sent = Some(self.clock.now());
    }

    /// Removes a waiter of this client from the store, or releases a lock, without waiting for the
    /// answer. A later request of this client about the lock does not overtake this request.
    pub(in crate::engine) fn leave_async(&self, id: &AcquisitionId, options: ReleaseOptions) {
        if self.is_forked() {
            return;
        }
        let by = self.command_deadline();
        let node = self.workers.renewal_node(&id.name);
        let (workers, start) = (Arc::clone(&self.workers), self.metrics().request_starts());
        let (events, waiter) = (self.events.clone(), id.clone());
        let pending = self.workers.pending_cleanup();
        *self.async_release.lock() = Some(id.name.clone());
        let submitted = call_backend(|| {
            let done = Box::new(move |answer: Result<Release, Failure>| {
                events.metrics.release_answered(start, &answer);
                if answer.is_err() {
                    workers.clean_up(node, waiter, options);
                }
                drop(pending);
            });
            self.backend.submit_release(id, options, by, done);
            Ok(())
        });
        if submitted.is_err() {
            self.clean_up((id.clone(), options)); // the backend panicked
        }
    }

    /// Ends one hold locally. Returns the end of the last hold, if the release must be sent; `None`
    /// if other holds are left, or the lock was handed off.
    fn end_locally(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<Option<Ended>, Error> {
        let held = self.still_holds(lock, acquisition);
        if held && acquisition.end_nested() {
            return Ok(None);
        }
        // The parent holds the lock: a forked child must not send its release. Nor may the child
        // lock the local lock's mutex: a thread that held it at the fork does not exist in the
        // child, so the mutex would stay locked.
        self.refuse_if_forked()
            .map_err(|error| error.on(&acquisition.name))?;
        lock.end_hold(acquisition);
        if !held {
            return Err(acquisition.lost_error());
        }
        // No hand-off by a writer whose thread also holds the read lock: after this release the
        // thread is still a reader, which excludes the next writer.
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
            self.timer.disarm(lock); // no other acquisition uses a guard's local lock
        }
        Ok(Some(Ended { at, is_doubtful }))
    }

    /// Ends an acquisition locally, so that no renewal follows the release. Returns the time of the
    /// end; `None` if the acquisition had already ended or expired.
    pub(in crate::engine) fn mark_released(&self, acquisition: &Acquisition) -> Option<Moment> {
        let mut inner = acquisition.lock();
        let now = self.clock.now();
        if acquisition.has_ended() || now >= acquisition.valid_until() {
            return None;
        }
        acquisition.set_released(&mut inner);
        Some(now)
    }

    /// Handles the answer to a release.
    fn released(
        &self,
        acquisition: &Acquisition,
        answer: Result<Release, Failure>,
        first_unanswered: Option<Moment>,
    ) -> Result<(), Error> {
        match ReleaseOutcome::of(&self.events, acquisition, answer, first_unanswered) {
            ReleaseOutcome::Released => Ok(()),
            ReleaseOutcome::Lost(loss) => Err(loss.to_error().on(&acquisition.name)),
            ReleaseOutcome::Refused(error) => Err(error.on(&acquisition.name)),
            ReleaseOutcome::Unknown(error) => {
                let now = self.clock.now();
                self.clean_up(acquisition.to_end(now));
                Err(unconfirmed(acquisition, now, &error))
            }
        }
    }

    /// Sends a release at `now`, and repeats it while the store is unavailable, until `by` is near.
    /// Returns the answer, and the time of the first send that got no answer. Must not be called in
    /// a forked child.
    pub(in crate::engine) fn send_release(
        &self,
        id: &AcquisitionId,
        options: ReleaseOptions,
        now: Moment,
        by: Moment,
    ) -> (Result<Release, Failure>, Option<Moment>) {
        let (begun, mut sent, mut first_unanswered) = (now, now, None);
        loop {
            // Until a send goes unanswered, each send gets half of the remaining time, so that a
            // repetition can still be answered. In a store that cannot renew, and so cannot
            // distinguish owners, an unanswered release is not repeated, so the first send gets all
            // of the time.
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

    /// Collects the answers to releases that no caller waits for. If a cleanup is pending, sends
    /// another request about the lock of the last such release, and waits for its answer until
    /// `by`: a server answers this request after the releases that were sent to it before.
    pub(crate) fn collect_async_releases(&self, by: Moment) {
        // A separate statement, so that the mutex is unlocked before the request is sent: a guard
        // that is dropped meanwhile must not wait for the answer.
        let name = self.async_release.lock().take();
        if let Some(name) = name.filter(|_| self.workers.has_pending_cleanups()) {
            // The result does not matter. If this request succeeds, the answers to the releases on
            // its connection have been read before; if it fails, those answers cannot be read,
            // either.
            let _answer = call_backend(|| self.store()?.inspect(&name, by));
        }
    }
}

/// A release that has begun. Its acquisition has ended locally, and no thread of this client sends
/// attempts for the lock until this is dropped.
struct Ending<'a> {
    engine: &'a Engine,
    lock: &'a Arc<LocalLock>,
    acquisition: &'a Arc<Acquisition>,
    /// The time at which the answer was handled or, if no caller waits for it, the release was
    /// sent. `None` at the drop only after a panic.
    sent: Option<Moment>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let Self {
            engine,
            acquisition,
            ..
        } = *self;
        let sent = self.sent.unwrap_or_else(|| {
            let now = engine.clock.now();
            engine.clean_up(acquisition.to_end(now));
            now
        });
        acquisition.close_listeners();
        self.lock.released(acquisition, sent);
    }
}

/// The meaning of an answer, as in the table of this file.
enum ReleaseOutcome {
    Released,
    /// Lost; the event was emitted.
    Lost(Loss),
    Refused(Error),
    Unknown(Error),
}

impl ReleaseOutcome {
    /// Maps an answer; `first_unanswered` is the time of the first send that got no answer.
    fn of(
        events: &Events,
        acquisition: &Acquisition,
        answer: Result<Release, Failure>,
        first_unanswered: Option<Moment>,
    ) -> Self {
        match answer {
            Ok(Release::Freed) => Self::Released,
            Ok(Release::Gone)
                if first_unanswered.is_some_and(|sent| sent < acquisition.valid_until()) =>
            {
                events.emit(|| Event::ReleaseUnconfirmed {
                    lock: acquisition.name.clone(),
                });
                Self::Released
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

/// The data needed to handle the answer to a dropped guard's release. Does not keep the engine
/// alive, because the end of the engine waits for this release.
struct AsyncRelease {
    events: Events,
    clock: Arc<dyn Clock>,
    workers: Arc<Workers>,
    acquisition: Arc<Acquisition>,
    /// The node whose worker repeats the release if it is unconfirmed. Determined in advance,
    /// because the thread that reads the answer must not call the backend.
    node: Result<NodeId, Error>,
    start: RequestStart,
    _pending: PendingCleanup,
}

impl AsyncRelease {
    /// Handles the answer, or the failure to get one. Sends no request, because the calling thread
    /// reads the answers, and may be in the middle of a request of its own.
    fn answered(self, answer: Result<Release, Failure>) {
        let Self {
            events,
            acquisition,
            workers,
            ..
        } = &self;
        events.metrics.release_answered(self.start, &answer);
        match ReleaseOutcome::of(events, acquisition, answer, None) {
            ReleaseOutcome::Released => {
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
        "the release was not confirmed: it is repeated in the background unless the store refuses \
         it, and the lease ends the lock within about {left:.1?} in any case"
    );
    Error::new(cause.kind(), message)
        .with_source(cause.clone())
        .on(&acquisition.name)
}

/// Emits an event that a lock was released.
fn tell_released(events: &Events, acquisition: &Acquisition, now: Moment) {
    let held = now.since(acquisition.since);
    events.emit(|| Event::Released {
        lock: acquisition.name.clone(),
        held,
    });
}

/// Emits an event that a release failed or was not confirmed.
pub(in crate::engine) fn tell_failed(events: &Events, acquisition: &Acquisition, error: Error) {
    events.emit(|| Event::ReleaseFailed {
        lock: acquisition.name.clone(),
        error,
    });
}

/// Records a loss, because the lock was already gone at its release, and emits the events of a
/// loss.
fn end_as_gone(events: &Events, acquisition: &Acquisition) -> Loss {
    let loss = acquisition.set_lost(&mut acquisition.lock(), LossCause::Gone);
    tell_lost(events, acquisition, loss.clone());
    loss
}
