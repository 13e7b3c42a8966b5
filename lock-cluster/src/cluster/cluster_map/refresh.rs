//! The refreshes of the slot map, and the requests that wait for them.

use super::ClusterMap;
use super::survey::panicked;
use lock_core::backend::{BackgroundTask, Backoff, Failure, contain, no_thread};
use lock_core::{Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The interval of refreshes while the cluster is in use, as in Redisson, so that the node that
/// replaced a frozen one is found. It varies by 10 %.
const REFRESH: Duration = Duration::from_secs(5);
/// The first pause between refreshes after a failure, so that a new master is found early. The
/// pause doubles, and half of it is random, so that clients do not refresh all at once.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause between refreshes after a failure, so that the end of a failover is noticed
/// soon.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The requests for refreshes, and the state of the last one.
#[derive(Default)]
pub(crate) struct RefreshState {
    state: Mutex<RefreshProgress>,
    task: BackgroundTask,
}

#[derive(Default)]
struct RefreshProgress {
    asked: bool,
    closed: bool,
    /// The number of the refresh that was begun last, and of the one that has ended last.
    begun: u64,
    done: u64,
    /// The failure of the last refresh.
    trouble: Option<Failure>,
    /// The waiting threads, each with the number of the refresh that it waits for.
    waiting: Vec<(u64, Arc<Signal>)>,
}

impl RefreshState {
    /// Requests a refresh soon.
    pub(crate) fn ask(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.asked, true) {
            drop(state);
            self.task.wake();
        }
    }

    /// Wakes the task, which refreshes periodically again, because the cluster is in use.
    pub(super) fn wake(&self) {
        self.task.wake();
    }

    /// Ends the task, and wakes the threads that wait for a refresh.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.task.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    #[cfg(test)]
    pub(super) fn is_asked(&self) -> bool {
        self.state.lock().asked
    }

    /// Records the end of the refresh that was begun last, and wakes the threads that wait for it.
    fn finish(&self, outcome: Result<(), Failure>) {
        let mut state = self.state.lock();
        state.done = state.begun;
        state.trouble = outcome.err();
        let done = state.done;
        // Threads that began to wait during this refresh wait for the next one.
        let told: Vec<_> = state
            .waiting
            .extract_if(.., |(awaited, _)| *awaited <= done)
            .collect();
        drop(state);
        told.iter().for_each(|(_, signal)| signal.raise());
    }
}

impl ClusterMap {
    /// Requests a refresh. Does not wait.
    pub(crate) fn ask(&self) {
        self.refresh_state.ask();
    }

    /// Waits for the next refresh, at most until `by`.
    ///
    /// # Errors
    ///
    /// The failure of the refresh, or of the start of the background thread. A time-out or a close
    /// of the map is no error, unless no map is known yet and the last refresh has failed: then
    /// returns the failure of that refresh.
    pub(crate) fn refreshed(self: &Arc<Self>, by: Moment) -> Result<(), Failure> {
        let signal = Arc::<Signal>::default();
        let mut state = self.refresh_state.state.lock();
        let mut refresher = Refresher::new(Arc::clone(self));
        self.refresh_state
            .task
            .start(&self.clock, move || refresher.turn())
            .map_err(|error| {
                Failure::NotSent(no_thread(
                    "cannot start the thread that asks for the cluster",
                    error,
                ))
            })?;
        // A refresh under way may have queried nodes before the event for which the caller requires
        // a refresh.
        let awaited = state.begun + 1;
        state.asked = true;
        state.waiting.push((awaited, Arc::clone(&signal)));
        drop(state);
        self.refresh_state.task.wake();
        loop {
            let mut state = self.refresh_state.state.lock();
            let is_done = state.done >= awaited;
            // A closed map has no further refresh.
            if is_done || state.closed || self.clock.now() >= by {
                state
                    .waiting
                    .retain(|(_, other)| !Arc::ptr_eq(other, &signal));
                let trouble = state.trouble.clone();
                return trouble
                    .filter(|_| is_done || !self.is_known())
                    .map_or(Ok(()), Err);
            }
            drop(state);
            self.clock.wait(&signal, by);
        }
    }
}

/// The background task: refreshes when requested or due, until closed.
struct Refresher {
    shared: Arc<ClusterMap>,
    /// The earliest time of a requested refresh, and the time of the next periodic refresh, which
    /// happens only while the cluster is in use.
    soon: Moment,
    later: Moment,
    backoff: Backoff,
}

impl Refresher {
    fn new(shared: Arc<ClusterMap>) -> Self {
        let (now, backoff) = (shared.clock.now(), Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        Self {
            shared,
            soon: now,
            later: now,
            backoff,
        }
    }

    fn turn(&mut self) -> Option<Moment> {
        let shared = &self.shared;
        let now = shared.clock.now();
        // Surveys continue while no known node answers: otherwise a client with few calls would
        // never notice that the silence has lasted for a lease.
        let in_use = shared.used.load(Ordering::Relaxed)
            || !shared.watches.is_empty()
            || shared.silence.lock().is_some();
        let mut state = shared.refresh_state.state.lock();
        if state.closed {
            // Threads that begin to wait later see that the map is closed. Threads that wait
            // already are woken here.
            let left = std::mem::take(&mut state.waiting);
            drop(state);
            left.iter().for_each(|(_, signal)| signal.raise());
            return None;
        }
        let due = match (state.asked, in_use) {
            (true, _) => self.soon,
            (false, true) => self.later,
            (false, false) => Moment::NEVER,
        };
        if now < due {
            return Some(due);
        }
        state.begun += 1;
        shared.used.store(false, Ordering::Relaxed);
        if !std::mem::take(&mut state.asked) {
            self.backoff.reset();
        }
        drop(state);
        let outcome = contain(|| shared.refresh()).unwrap_or_else(|| Err(panicked()));
        let now = shared.clock.now();
        self.soon = now + self.backoff.next();
        self.later = now + REFRESH.mul_f64(0.9 + fastrand::f64() / 5.0);
        shared.refresh_state.finish(outcome);
        Some(now)
    }
}
