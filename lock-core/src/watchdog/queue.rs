//! [`Queue`]: what a lane has to do, and which of it comes next.

use super::lane::{Cleanup, RenewJob};
use super::recent::Recent;
use super::relief::{Next, Reliefs, Sender};
use crate::backend::{NodeId, RENEW_BATCH};
use crate::clock::{Moment, Signal};
use crate::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How long a lane stays without work before it ends; the next work starts another.
const IDLE: Duration = Duration::from_secs(30);

/// The work of one thread, and of those that relieve it.
pub(super) struct Queue {
    pub(super) lane: NodeId,
    pub(super) work: Mutex<Work>,
    pub(super) signal: Arc<Signal>,
    /// For the relief that stands by: there is one at most.
    pub(super) relief: Arc<Signal>,
    /// Never locked together with another.
    pub(super) recent: Mutex<Recent>,
}

#[derive(Default)]
pub(super) struct Work {
    pub(super) renewals: VecDeque<RenewJob>,
    pub(super) cleanups: Vec<Cleanup>,
    pub(super) running: bool,
    pub(super) reliefs: Reliefs,
}

/// What a lane does next.
pub(super) enum Step {
    Renew(Vec<RenewJob>),
    CleanUp(Cleanup),
    Sleep(Moment),
    End,
}

impl Queue {
    pub(super) fn new(lane: NodeId) -> Self {
        let (work, recent) = (Mutex::default(), Mutex::default());
        Self { lane, work, signal: Arc::default(), relief: Arc::default(), recent }
    }

    /// Makes everything due that waits for its next try.
    pub(super) fn hurry(&self, now: Moment) {
        for cleanup in &mut self.work.lock().cleanups {
            cleanup.next = now;
        }
        self.signal.raise();
        self.relief.raise();
    }

    pub(super) fn next_step(
        &self,
        now: Moment,
        stopping: bool,
        idle_since: &mut Option<Moment>,
    ) -> Step {
        let mut work = self.work.lock();
        // In one go with taking the next: no relief shall come in between.
        if work.reliefs.lane_is_back(now) {
            self.relief.raise();
        }
        if !work.renewals.is_empty() {
            *idle_since = None;
            return Step::Renew(work.take_batch(Sender::LANE, now));
        }
        if let Some(at) = work.cleanups.iter().position(|cleanup| cleanup.next <= now) {
            *idle_since = None;
            return Step::CleanUp(work.cleanups.swap_remove(at));
        }
        let next = work.cleanups.iter().map(|cleanup| cleanup.next).min();
        let end = *idle_since.get_or_insert(now) + IDLE;
        match next {
            Some(next) => Step::Sleep(next),
            None if stopping || now >= end => {
                work.running = false; // under the lock: whoever submits next starts another
                Step::End
            }
            None => Step::Sleep(end),
        }
    }

    /// What a relief does next; nothing if it has left.
    pub(super) fn next_relief(&self, sender: Sender, now: Moment, stopping: bool) -> Option<Step> {
        let mut work = self.work.lock();
        let has_work = !work.renewals.is_empty();
        match work.reliefs.next(sender, has_work, now, stopping) {
            Next::Take => Some(Step::Renew(work.take_batch(sender, now))),
            Next::StandBy(until) => Some(Step::Sleep(until)),
            Next::Leave => None,
        }
    }
}

impl Work {
    fn take_batch(&mut self, sender: Sender, now: Moment) -> Vec<RenewJob> {
        self.reliefs.sends(sender, now);
        let count = self.renewals.len().min(RENEW_BATCH);
        self.renewals.drain(..count).collect()
    }
}
