//! What is held: whether it is valid, whether the store still has it, and when it is lost.

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
    /// Whether it is valid now, by the clocks alone. Never in a forked child: the parent holds it.
    pub(crate) fn is_valid(&self, acquisition: &Acquisition) -> bool {
        !self.remaining(acquisition).is_zero()
    }

    /// What is left of the validity, by the clocks alone.
    pub(crate) fn remaining(&self, acquisition: &Acquisition) -> Duration {
        if self.is_forked() {
            Duration::ZERO
        } else {
            acquisition.trusted_at(self.reading())
        }
    }

    /// Reads the clock. Has all that is held confirmed, on another thread, if that may have skipped
    /// time. Not in a forked child, where a mutex may be locked for ever.
    pub(crate) fn reading(&self) -> Reading {
        let (reading, look) = self.skipped.look();
        if look == Look::Leap
            && let Some(recheck) = self.recheck.get()
        {
            recheck.start();
        }
        reading
    }

    /// How long `sent` is ago, if all passed that the clock may have skipped.
    pub(in crate::engine) fn passed_since(&self, sent: Moment) -> Duration {
        self.reading().since(self.skipped.reading_at(sent))
    }

    /// Whether its deadline is to come, whatever the clock may have skipped. If it has passed, it
    /// is lost from here on, also if the timer did not come by yet.
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

    /// The same, as an error where it is not.
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

    /// What this thread holds of this lock and may still trust.
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
        // By the deadline: in doubt the thread still has what keeps it out of another kind.
        let is_held = holds > 0 && acquisition.is_valid_at(self.clock.now()) && !self.is_forked();
        is_held.then_some(acquisition)
    }

    /// Whether this is a write lock beside which the calling thread reads.
    pub(in crate::engine) fn is_read_here(&self, name: &LockName) -> bool {
        let held = |kind| self.held_by(&name.of_kind(kind), thread_id());
        name.profile().readers.and_then(held).is_some()
    }

    /// Asks the store whether it still has it, and what is left of its lease: what the store says,
    /// less the time since it was asked.
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
                // What was true when the store answered may have ended before the answer came.
                self.must_hold(lock, acquisition)?;
                let is_shortened = acquisition.confirmed(sent, remaining);
                let now = self.reading();
                if is_shortened {
                    // A fixed lease has no renewal that would find its end in time.
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

    /// Ends an acquisition by loss: tells the holder, and lets others of this client contend.
    pub(in crate::engine) fn declare_lost(
        &self,
        lock: &Arc<LocalLock>,
        acquisition: &Arc<Acquisition>,
        cause: LossCause,
    ) {
        if self.is_forked() {
            return; // It is the parent's to lose.
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
        // A lease that simply ran out needs nothing. After a renewal that failed, or is still under
        // way, the store may keep it for longer than we trust it; an ended holder's it has still.
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
        // Also if the store says that it is gone: a copy of the first request may be under way.
        // A writer may be kept by the reads of its thread, and of several permits some may be left.
        let name = &acquisition.name;
        let may_be_left =
            name.profile().readers.is_some() || matches!(name.permits(), Some((_, 2..)));
        if is_left_over || may_be_left || acquisition.has_unknown_outcome() {
            self.clean_up(acquisition.to_end(self.clock.now()));
        }
        tell_lost(&self.events, acquisition, loss);
    }

    /// The store found something that is not a lock under the name. Returns the loss as an error.
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

    /// Has lost acquisitions checked again while there are any: a thread may end.
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

/// Tells of a loss.
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
