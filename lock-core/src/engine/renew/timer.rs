//! [`Timer`]: one thread that knows when each lock must be checked. The thread sends no requests.
//!
//! Each local lock that is held, or was recently, has one timer. Unlocking leaves the timer in the
//! wheel, and the next acquisition reuses it, so a quick lock and unlock of a name in use involves
//! neither the wheel nor the thread. Only the local lock of a single guard is not used again, so
//! unlocking removes its timer.

use super::{RenewalHandler, RenewalJob, Workers};
use crate::backend::RENEW_BATCH;
use crate::engine::queue::{LocalLock, LocalLockState};
use crate::engine::timer_wheel::{TimerKey, Wheel};
use crate::error::Error;
use crate::panics::contain;
use crate::sync::Mutex;
use crate::threads::on_demand::OnDemandThread;
use crate::time::{Clock, Moment, Signal, Woken};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The precision of the timer wheel, a tenth of the shortest watched lease, because a renewal is
/// due after a third of the lease. The validity of a lock is read from the clock, not from the
/// wheel.
pub(in crate::engine) const TICK: Duration = Duration::from_millis(10);

/// The longest time between two checks of a name that is or was just held, however long its lease,
/// so that a released name is removed from memory and the end of a holder's thread is noticed.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// The longest time from a grant to the first check, so that the memory of a name that is used
/// once, and released by then, is freed soon.
pub(in crate::engine) const FIRST_LOOK: Duration = Duration::from_secs(1);

/// The time for which the timer thread waits without a timer before it ends, so that an idle client
/// has no threads.
const IDLE: Duration = Duration::from_secs(10);

/// The timer thread and the timers for which it waits.
pub(in crate::engine) struct Timer {
    clock: Arc<dyn Clock>,
    state: Mutex<TimerState>,
    signal: Arc<Signal>,
    /// Weak, so that the thread does not keep the backend alive.
    workers: Weak<Workers>,
    handler: Weak<dyn RenewalHandler>,
}

struct TimerState {
    wheel: Wheel<Arc<LocalLock>>,
    thread: OnDemandThread,
    stopping: bool,
    /// The end of the thread's sleep: only an earlier timer must wake the thread.
    asleep_until: Moment,
}

impl Timer {
    pub(in crate::engine) fn new(
        clock: Arc<dyn Clock>,
        workers: Weak<Workers>,
        handler: Weak<dyn RenewalHandler>,
    ) -> Self {
        let state = TimerState {
            wheel: Wheel::new(clock.now(), TICK),
            thread: OnDemandThread::default(),
            stopping: false,
            asleep_until: Moment::NEVER,
        };
        Self {
            clock,
            state: Mutex::new(state),
            signal: Arc::default(),
            workers,
            handler,
        }
    }

    /// Schedules a check of `lock` by `due`, and within [`LONGEST_LOOK`] of `now`. Does nothing if
    /// a check is scheduled by then.
    ///
    /// # Errors
    ///
    /// If the thread does not run yet and cannot be started.
    pub(in crate::engine) fn arm(
        self: &Arc<Self>,
        lock: &Arc<LocalLock>,
        held: &mut LocalLockState,
        now: Moment,
        due: Moment,
    ) -> Result<(), Error> {
        let due = due.min(now + LONGEST_LOOK);
        if held.timer.is_some_and(|(_, at)| at <= due) {
            return Ok(());
        }
        let mut state = self.state.lock();
        // Start the thread first: if it cannot be started, no timer may be left in the wheel,
        // because the next caller would regard it as armed.
        if !state.stopping {
            let timer = Arc::clone(self);
            let name = || "distlock-timer".to_owned();
            state.thread.start(name, move || timer.run())?;
        }
        if let Some((key, _)) = held.timer.take() {
            state.wheel.cancel(key);
        }
        held.timer = Some((state.wheel.schedule(due, Arc::clone(lock)), due));
        let is_earlier = due < state.asleep_until;
        drop(state);
        if is_earlier {
            self.signal.raise();
        }
        Ok(())
    }

    /// Cancels the check of `lock`.
    pub(in crate::engine) fn disarm(&self, lock: &LocalLock) {
        let Some((key, _)) = lock.lock().timer.take() else {
            return;
        };
        self.cancel(key);
    }

    /// Removes this timer from the wheel, if it is still there.
    pub(in crate::engine) fn cancel(&self, key: TimerKey) {
        let ended = self.state.lock().wheel.cancel(key);
        drop(ended); // outside the mutex: dropping a lock locks other mutexes
    }

    /// Ends the thread.
    pub(in crate::engine) fn stop(&self) {
        self.state.lock().stopping = true;
        self.signal.raise();
    }

    /// Returns the number of threads: one or none.
    #[cfg(test)]
    pub(in crate::engine) fn threads(&self) -> usize {
        usize::from(self.state.lock().thread.is_running())
    }

    /// Returns the number of armed timers.
    #[cfg(test)]
    pub(in crate::engine) fn timers(&self) -> usize {
        self.state.lock().wheel.items().count()
    }

    fn run(&self) {
        let (mut due, mut renewals) = (Vec::new(), Vec::with_capacity(RENEW_BATCH));
        loop {
            let now = self.clock.now();
            let mut state = self.state.lock();
            state.wheel.expire(now, &mut due);
            if state.stopping {
                break;
            }
            let next = state.wheel.next();
            if next.is_some() {
                state.thread.busy();
            }
            let until = match next {
                // No sleep: the due locks are checked, and then the wheel again.
                _ if !due.is_empty() => now,
                Some(next) => next,
                None => match state.thread.idle(now, IDLE) {
                    Some(end) => end,
                    None => return,
                },
            };
            state.asleep_until = until;
            drop(state);
            if due.is_empty() {
                let _woken: Woken = self.clock.wait(&self.signal, until);
                continue;
            }
            let Some(handler) = self.handler.upgrade() else {
                break;
            };
            self.check(handler.as_ref(), &mut due, &mut renewals);
        }
        // Drop the last locks outside the mutex, because their drop may drop other parts of the
        // client.
        let rest = std::mem::replace(
            &mut self.state.lock().wheel,
            Wheel::new(self.clock.now(), TICK),
        );
        drop(rest);
    }

    /// Checks the due locks, the longest overdue first, and sends the renewals in batches.
    ///
    /// In an incomplete batch each renewal costs more, so the last batch is filled up with renewals
    /// that are due soon. Renewals that are sent together are due together the next time, too.
    fn check(
        &self,
        handler: &dyn RenewalHandler,
        due: &mut Vec<Arc<LocalLock>>,
        renewals: &mut Vec<RenewalJob>,
    ) {
        self.check_each(handler, due, renewals);
        if let Some(slack) = renewals.iter().map(|job| job.slack).min() {
            let (until, room) = (self.clock.now() + slack, RENEW_BATCH - renewals.len());
            self.state.lock().wheel.expire_early(until, room, due);
            self.check_each(handler, due, renewals);
        }
        self.send(renewals);
    }

    /// Checks these locks, and sends each full batch; the rest stays in `renewals`.
    fn check_each(
        &self,
        handler: &dyn RenewalHandler,
        due: &mut Vec<Arc<LocalLock>>,
        renewals: &mut Vec<RenewalJob>,
    ) {
        let mut rest = due.drain(..);
        while !rest.as_slice().is_empty() {
            let room = RENEW_BATCH - renewals.len();
            LocalLock::fetch(rest.as_slice().iter().take(room));
            let now = self.clock.now();
            for lock in rest.by_ref().take(room) {
                // A panic of the backend must not end the timer of all other locks.
                renewals.extend(contain(|| handler.check(lock, now)).flatten());
            }
            if renewals.len() == RENEW_BATCH {
                self.send(renewals);
            }
        }
    }

    fn send(&self, renewals: &mut Vec<RenewalJob>) {
        contain(|| {
            self.workers
                .upgrade()
                .map(|workers| workers.renew(renewals))
        });
        renewals.clear();
    }
}
