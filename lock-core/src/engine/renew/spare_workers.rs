//! [`SpareWorkers`]: the choice of the thread that sends renewals while a node's main worker waits
//! for an answer.
//!
//! One spare worker *stands by* whenever work is queued while the main worker sends. It checks the
//! queue when the latest request has been under way for twice the usual time, and for [`PATIENCE`]
//! at least. If work is queued even then, all sending workers are stuck: the spare worker takes the
//! next batch and calls another worker to stand by. Spare workers end when the main worker is back.
//! This file only keeps these records, under the mutex of the queue.
//!
//! A lock that is renewed on one connection and then on another costs one more renewal, because the
//! server reports the second one as a change. So a far server alone must not cause the use of a
//! spare worker.

use crate::time::Moment;
use std::collections::HashMap;
use std::time::Duration;

/// The shortest time after which a batch under way counts as slow, because a server nearby takes
/// less for a hundred renewals. The next batch then uses another connection. With a slower server
/// it is twice the usual time, up to a second.
const PATIENCE: Duration = Duration::from_millis(20);

/// The most workers that send renewals besides the main one: four requests that hang mean that the
/// server hangs.
const MOST: usize = 3;

/// The longest sleep of a spare worker while all others hang and nothing is queued, so that a
/// missed wake-up costs no more. Arriving work wakes it.
const LOOK: Duration = Duration::from_secs(1);

/// A thread that sends renewals.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct WorkerId(u64);

impl WorkerId {
    pub(super) const MAIN: Self = Self(0);
}

/// The worker to call so that one stands by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// None: not needed, a worker checks in time, or the maximum of workers runs.
    None,
    /// The worker that sleeps on standby.
    Wake,
    /// A new worker to be started.
    Start(WorkerId),
}

/// The next action of a spare worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Take,
    StandBy(Moment),
    Leave,
}

/// The workers of one queue that send renewals.
#[derive(Default, Debug)]
pub(super) struct SpareWorkers {
    /// The workers that wait for an answer, the main one included, and since when.
    sending: HashMap<WorkerId, Moment>,
    /// The number of workers besides the main one.
    threads: usize,
    /// The worker that stands by, and until when it sleeps.
    standby: Option<(WorkerId, Moment)>,
    /// The number of the last worker that was started.
    last: u64,
    /// The usual duration of the main worker's requests. One request at most doubles it.
    usual: Duration,
}

impl SpareWorkers {
    /// Records that this worker sends from now on.
    pub(super) fn sends(&mut self, worker: WorkerId, now: Moment) {
        self.sending.insert(worker, now);
    }

    /// Records that the main worker continues. Returns whether the worker on standby must be woken,
    /// to end.
    pub(super) fn main_is_back(&mut self, now: Moment) -> bool {
        if let Some(sent) = self.sending.remove(&WorkerId::MAIN) {
            let most = self.usual.max(PATIENCE / 4) * 2;
            self.usual = now.since(sent).min(most);
        }
        self.wake_before(now + self.patience())
    }

    /// Returns the worker to call because work was queued.
    pub(super) fn call(&mut self) -> Call {
        // A main worker that is not sending has been woken and takes the work.
        let Some(look) = self.next_look().filter(|_| self.main_is_sending()) else {
            return Call::None;
        };
        if self.standby.is_some() {
            return if self.wake_before(look) {
                Call::Wake
            } else {
                Call::None
            };
        }
        if self.threads == MOST {
            return Call::None;
        }
        self.threads += 1;
        self.last += 1;
        let worker = WorkerId(self.last);
        self.standby = Some((worker, look)); // set here: no other worker starts meanwhile
        Call::Start(worker)
    }

    /// Returns the next action of this spare worker.
    pub(super) fn next(
        &mut self,
        worker: WorkerId,
        has_work: bool,
        now: Moment,
        stopping: bool,
    ) -> Next {
        self.sending.remove(&worker);
        self.standby.take_if(|(standby, _)| *standby == worker);
        match self.next_look() {
            Some(look) if self.main_is_sending() && !stopping => {
                let are_stuck = look <= now;
                if are_stuck && has_work {
                    return Next::Take;
                }
                if self.standby.is_none() {
                    let until = if are_stuck { now + LOOK } else { look };
                    self.standby = Some((worker, until));
                    return Next::StandBy(until);
                }
            }
            _ => {}
        }
        self.left(worker);
        Next::Leave
    }

    /// Removes a spare worker that ended or could not be started.
    pub(super) fn left(&mut self, worker: WorkerId) {
        self.standby.take_if(|(standby, _)| *standby == worker);
        self.threads -= 1;
    }

    /// Returns the number of threads besides the main one.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    fn patience(&self) -> Duration {
        (self.usual * 2).clamp(PATIENCE, LOOK)
    }

    fn main_is_sending(&self) -> bool {
        self.sending.contains_key(&WorkerId::MAIN)
    }

    /// Returns when all sending workers have been waiting for too long.
    fn next_look(&self) -> Option<Moment> {
        self.sending
            .values()
            .max()
            .map(|latest| *latest + self.patience())
    }

    /// Returns whether the worker on standby must be woken to check by `look`, and records it as
    /// woken.
    fn wake_before(&mut self, look: Moment) -> bool {
        let Some((_, until)) = self.standby.as_mut().filter(|(_, until)| *until > look) else {
            return false;
        };
        *until = look;
        true
    }
}
