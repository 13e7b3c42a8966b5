//! The validity of held locks: local checks, verification with the store, and loss.

use crate::backend::{HolderInfo, call_backend};
use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::holder::thread_id;
use crate::engine::queue::{LocalLock, LocalLockState, Scope};
use crate::engine::skipped_time::{Look, Reading};
use crate::error::Error;
use crate::name::LockName;
use crate::observe::event::Event;
use crate::observe::event_queue::Events;
use crate::observe::loss::{Loss, LossCause};
use crate::time::Moment;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Returns whether the acquisition is valid now, without a request. Always `false` in a forked
    /// child: the parent holds the lock.
    pub(crate) fn is_valid(&self, acquisition: &Acquisition) -> bool {
        !self.remaining(acquisition).is_zero()
    }

    /// Returns the remaining validity, without a request. Zero in a forked child.
    pub(crate) fn remaining(&self, acquisition: &Acquisition) -> Duration {
        if self.is_forked() {
            Duration::ZERO
        } else {
            acquisition.trusted_at(self.reading())
        }
    }

    /// Reads the clock. If this reading is the first to show that the clock may have skipped time,
    /// starts the verification of all held locks in the background. Must not be called in a forked
    /// child, where a mutex may stay locked for ever.
    pub(crate) fn reading(&self) -> Reading {
        let (reading, look) = self.skipped.look();
        if look == Look::Leap
            && let Some(recheck) = self.recheck.get()
        {
            recheck.start();
        }
        reading
    }

    /// Returns how long ago `sent` was, including all time that the clock may have skipped.
    pub(in crate::engine) fn passed_since(&self, sent: Moment) -> Duration {
        self.reading().since(self.skipped.reading_at(sent))
    }

    /// Returns whether the deadline is still ahead by the clock, ignoring skipped time. If it is
    /// not, declares the loss at once, without waiting for the timer.
    pub(in crate::engine) fn still_holds(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
    ) -> bool {
        let is_valid = acquisition.is_valid_at(self.clock.now());
        if !is_valid {
            self.declare_lost(lock, acquisition, LossCause::Expired);
        }
        is_valid
    }

    /// Returns an error if the deadline has passed by the clock, or in a forked child.
    pub(crate) fn must_hold(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<(), Error> {
        self.refuse_if_forked()
            .map_err(|error| error.on(&acquisition.name))?;
        if self.still_holds(lock, acquisition) {
            Ok(())
        } else {
            Err(acquisition.lost_error())
        }
    }

    /// Returns the valid acquisition of this lock that `thread` holds; `None` in a forked child.
    pub(in crate::engine) fn held_by(
        &self,
        name: &LockName,
        thread: u64,
    ) -> Option<Arc<Acquisition>> {
        let scope = match name.profile().hands_off {
            true => Scope::CLIENT,
            false => Scope::thread(thread),
        };
        let (holds, acquisition) = self.find_local_lock(name, scope)?.holds_of(thread)?;
        // Skipped time is ignored: a doubtful lock still prevents its thread from acquiring other
        // kinds.
        let is_held = holds > 0 && acquisition.is_valid_at(self.clock.now()) && !self.is_forked();
        is_held.then_some(acquisition)
    }

    /// Returns whether `name` is a write lock and the calling thread holds the matching read lock.
    pub(in crate::engine) fn is_read_here(&self, name: &LockName) -> bool {
        let held = |kind| self.held_by(&name.of_kind(kind), thread_id());
        name.profile().readers.and_then(held).is_some()
    }

    /// Asks the store to confirm that it still has the acquisition. Returns the remaining lease,
    /// minus the time since the query was sent; [`Duration::MAX`] without an expiry.
    pub(crate) fn verify(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
    ) -> Result<Duration, Error> {
        self.must_hold(lock, acquisition)?;
        let sent = self.reading();
        let by = sent.now + self.settings.command_timeout;
        let id = acquisition.id(acquisition.lock().lease);
        let holder = match call_backend(|| self.store()?.verify(&id, by)) {
            Ok(holder) => holder,
            Err(failure) if failure.error().is_foreign_format() => {
                return Err(self.declare_overwritten(lock, acquisition, failure.into_error()));
            }
            Err(failure) => return Err(failure.into_error().on(&acquisition.name)),
        };
        match holder {
            Some(HolderInfo { remaining, .. }) => {
                // The lease may have ended while the store's answer was on its way.
                self.must_hold(lock, acquisition)?;
                let is_shortened = acquisition.confirmed(sent, remaining);
                let now = self.reading();
                if is_shortened {
                    // A fixed lease has no renewal that would find the earlier end in time, so arm
                    // the timer.
                    let mut state = lock.lock();
                    let next = acquisition.next_check(&acquisition.lock());
                    let _armed = self.timer.arm(lock, &mut state, now.now, next);
                }
                if acquisition.trusted_at(now).is_zero() {
                    return Err(Error::unavailable(
                        "the time of day was set ahead while the store was asked, which may have \
                         been long ago: ask again",
                    )
                    .on(&acquisition.name));
                }
                let left = |left: Duration| left.saturating_sub(now.since(sent));
                Ok(remaining.map_or(Duration::MAX, left))
            }
            None => {
                self.declare_lost(lock, acquisition, LossCause::Gone);
                Err(acquisition.lost_error())
            }
        }
    }

    /// Ends an acquisition by loss: notifies the holder, and lets other threads of this client
    /// contend.
    pub(in crate::engine) fn declare_lost(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
        cause: LossCause,
    ) {
        if self.is_forked() {
            return; // Only the parent holds the lock.
        }
        let mut state = lock.lock();
        let mut inner = acquisition.lock();
        if acquisition.has_ended() {
            return;
        }
        let unconfirmed = inner
            .last_failure()
            .is_some_and(Error::is_insufficient_replicas);
        let cause = match cause {
            LossCause::Expired if unconfirmed => LossCause::InsufficientReplicas,
            cause => cause,
        };
        let loss = acquisition.set_lost(&mut inner, cause);
        // An expired lease needs no cleanup, unless a failed or pending renewal may make the store
        // keep the lock beyond the local validity. The lock of a holder whose thread ended is still
        // in the store.
        let may_be_there = inner.last_failure().is_some() || inner.renewing || inner.overlong;
        let is_left_over =
            cause != LossCause::Gone && (may_be_there || cause == LossCause::HolderEnded);
        drop(inner);
        lock.set_lost(&mut state, acquisition);
        self.arm_for_lost(lock, &mut state, self.clock.now());
        drop(state);
        if acquisition.holder.has_ended() {
            self.drop_detached(lock, slice::from_ref(acquisition));
        }
        // In three cases clean up even if the store reports the lock as gone: a copy of an attempt
        // may still arrive, the read locks of a writer's thread may keep the write lock in the
        // store, or some of several permits may remain.
        let name = &acquisition.name;
        let may_be_left =
            name.profile().readers.is_some() || matches!(name.permits(), Some((_, 2..)));
        if is_left_over || may_be_left || acquisition.has_unknown_outcome() {
            self.clean_up(acquisition.to_end(self.clock.now()));
        }
        tell_lost(&self.events, acquisition, loss);
    }

    /// Ends an acquisition because a value that is not a lock is under its name. Returns the error.
    pub(in crate::engine) fn declare_overwritten(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
        error: Error,
    ) -> Error {
        let mut inner = acquisition.lock();
        inner.renewing = false;
        inner.set_last_failure(error);
        drop(inner);
        self.declare_lost(lock, acquisition, LossCause::Gone);
        acquisition.lost_error()
    }

    /// Arms the timer while lost acquisitions remain, because the timer detects the end of their
    /// threads.
    pub(in crate::engine) fn arm_for_lost(
        &self,
        lock: &Arc<LocalLock>,
        state: &mut LocalLockState,
        now: Moment,
    ) {
        if let Some(lease) = state.shortest_lost() {
            let _armed = self.timer.arm(lock, state, now, now + lease.duration() / 3);
        }
    }
}

/// Emits the events of a loss.
pub(in crate::engine) fn tell_lost(events: &Events, acquisition: &Acquisition, loss: Loss) {
    if loss.cause() == LossCause::Gone {
        let Acquisition { name, token, .. } = acquisition;
        acquisition.chain.tell_lost(events, name, *token);
    }
    events.emit(|| Event::Lost {
        lock: acquisition.name.clone(),
        token: acquisition.token,
        loss,
    });
}
