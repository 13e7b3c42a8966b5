//! The watchdog: one timer thread that knows when which lock must be looked at, and one [`lane`] for each node.
//!
//! There is one timer for each name that is or was just held, and it is re-armed lazily: unlocking leaves it in the
//! wheel, and the next lock of that name finds it there. So a quick lock and unlock of a warm name touches neither the
//! wheel nor the thread. The thread itself asks no store, so none can hold it up: it hands renewals to the lanes and
//! declares losses by its own clock.

mod doubts;
pub(crate) mod lane;
mod queue;
mod recent;
mod relief;
pub(crate) mod wheel;

use crate::backend::{RENEW_BATCH, no_thread};
use crate::clock::{Clock, Moment, Signal, Woken};
use crate::engine::Engine;
use crate::engine::entry::{Entry, EntryState};
use crate::error::Error;
use crate::sync::Mutex;
use crate::sync::mutant;
use crate::sync::thread;
use lane::RenewJob;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;
use wheel::Wheel;

/// How exactly the wheel keeps time. A renewal is due at a third of a lease of at least 100 ms, and whether a holding is
/// valid is read from the clock, not from the wheel.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The longest time between two looks at a name that is or was just held, however long its lease:
/// a released name leaves memory then, and a holder's ended thread is noticed. A third of the
/// default lease, when a renewal is due anyway.
pub(crate) const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// How long the thread stays when nothing is held, before it ends; the next lock starts another.
const IDLE: Duration = Duration::from_secs(10);

/// The timer thread and what it waits for.
pub(crate) struct Timer {
    clock: Arc<dyn Clock>,
    state: Mutex<TimerState>,
    signal: Arc<Signal>,
    engine: Weak<Engine>,
}

struct TimerState {
    wheel: Wheel<Arc<Entry>>,
    running: bool,
    stopping: bool,
    /// Until when the thread sleeps: only an earlier timer has to wake it.
    asleep_until: Moment,
}

impl Timer {
    pub(crate) fn new(clock: Arc<dyn Clock>, engine: Weak<Engine>) -> Self {
        let wheel = Wheel::new(clock.now(), TICK);
        let state =
            TimerState { wheel, running: false, stopping: false, asleep_until: Moment::NEVER };
        Self { clock, state: Mutex::new(state), signal: Arc::new(Signal::new()), engine }
    }

    /// Sees to it that `entry` is looked at by `due`, and within [`LONGEST_LOOK`] of `now`. Does
    /// nothing if it will be looked at before that anyway.
    ///
    /// # Errors
    ///
    /// If the thread does not run yet and cannot be started.
    pub(crate) fn arm(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        held: &mut EntryState,
        now: Moment,
        due: Moment,
    ) -> Result<(), Error> {
        let due = due.min(now + LONGEST_LOOK);
        if held.timer.is_some_and(|(_, at)| at <= due) {
            return Ok(());
        }
        let mut state = self.state.lock();
        // The thread first: a timer that nobody looks at must not be taken for one by the next who comes to arm it.
        if !state.running && !state.stopping {
            let (timer, engine) = (Arc::clone(self), Weak::clone(&self.engine));
            let spawned = thread::Builder::new()
                .name("distlock-timer".to_owned())
                .spawn(move || timer.run(&engine));
            spawned
                .map_err(|failure| no_thread("could not start the watchdog's thread", failure))?;
            state.running = true;
        }
        if let Some((key, _)) = held.timer.take() {
            state.wheel.cancel(key);
        }
        held.timer = Some((state.wheel.schedule(due, Arc::clone(entry)), due));
        let is_earlier = due < state.asleep_until;
        drop(state);
        if is_earlier {
            self.signal.raise();
        }
        Ok(())
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        if mutant("stop_wakes_no_watchdog") {
            return;
        }
        self.signal.raise();
    }

    /// How many threads there are: one or none.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        usize::from(self.state.lock().running)
    }

    fn run(&self, engine: &Weak<Engine>) {
        let (mut due, mut renewals) = (Vec::new(), Vec::with_capacity(RENEW_BATCH));
        let mut idle_since = None;
        loop {
            let now = self.clock.now();
            let mut state = self.state.lock();
            state.wheel.expire(now, &mut due);
            // A batch costs the more, the more it lacks: it is filled up with what is due at the next tick. So batches that
            // are full stay together, and the rest of one joins the next.
            let room = due.len().next_multiple_of(RENEW_BATCH) - due.len();
            state.wheel.expire_early(room, &mut due);
            let until = match state.wheel.next() {
                _ if state.stopping => break,
                Some(next) => {
                    idle_since = None;
                    next
                }
                None if due.is_empty() => {
                    let end = *idle_since.get_or_insert(now) + IDLE;
                    if now >= end {
                        if mutant("idle_end_outside_the_lock") {
                            drop(state);
                            state = self.state.lock();
                        }
                        state.running = false; // under the lock: whoever arms next starts another
                        return;
                    }
                    end
                }
                None => Moment::NEVER,
            };
            state.asleep_until = if due.is_empty() { until } else { Moment::NEVER };
            drop(state);
            let _lost = mutant("watchdog_misses_its_signal") && self.signal.take();
            if due.is_empty() {
                let _woken: Woken = self.clock.wait(&self.signal, until);
                continue;
            }
            let Some(engine) = engine.upgrade() else { break };
            let mut rest = due.drain(..); // the longest overdue first
            while !rest.as_slice().is_empty() {
                let room = RENEW_BATCH - renewals.len();
                Entry::fetch(rest.as_slice().iter().take(room));
                let now = self.clock.now();
                for entry in rest.by_ref().take(room) {
                    // A backend's panic must not end the watchdog of all other locks.
                    let found = catch_unwind(AssertUnwindSafe(|| engine.look_after(entry, now)));
                    renewals.extend(found.ok().flatten());
                }
                if renewals.len() == RENEW_BATCH {
                    send(&engine, &mut renewals);
                }
            }
            send(&engine, &mut renewals);
        }
        // The last entries go outside the lock: dropping one may drop whatever it holds.
        let rest =
            std::mem::replace(&mut self.state.lock().wheel, Wheel::new(self.clock.now(), TICK));
        drop(rest);
    }
}

/// Together, so that a batch costs one lock and one wake-up, and not each renewal.
fn send(engine: &Engine, renewals: &mut Vec<RenewJob>) {
    let _reported = catch_unwind(AssertUnwindSafe(|| engine.send_renewals(renewals)));
    renewals.clear();
}
