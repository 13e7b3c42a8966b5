//! [`SpareWorkers`]: the choice of the thread that sends renewals while a node's main worker waits
//! for an answer.
//!
//! One spare worker is *on standby* whenever work is queued while the main worker sends, unless
//! [`MOST`] spare workers are sending. It checks the queue when the latest request has been under
//! way for twice the usual time, at least [`PATIENCE`] and at most [`LOOK`]. If work is still
//! queued then, all sending workers are stuck: the spare worker takes the next batch, and calls
//! another worker to standby. Once the main worker has its answer, each spare worker ends at its
//! next check or after its own answer. This file only records the state of the workers, under the
//! mutex of the queue.
//!
//! If a lock is renewed on one connection and then on another, the server reports the second
//! renewal as a change, which causes one more renewal. So a far server alone must not cause the use
//! of a spare worker.

use crate::time::Moment;
use std::collections::HashMap;
use std::time::Duration;

/// The shortest time after which a batch under way counts as slow, because a server nearby needs
/// less for a hundred renewals. The next batch then uses another connection. With a slower server
/// the time is twice the usual duration, up to a second.
const PATIENCE: Duration = Duration::from_millis(20);

/// The most workers that send renewals besides the main one. If four requests hang, the server
/// hangs.
const MOST: usize = 3;

/// The longest sleep of a spare worker while all others hang and nothing is queued, so that a
/// missed wake-up costs no more than this time. New work wakes the worker.
const LOOK: Duration = Duration::from_secs(1);

/// A thread that sends renewals.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct WorkerId(u64);

impl WorkerId {
    pub(super) const MAIN: Self = Self(0);
}

/// The worker to call, if no worker on standby would check the queue in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// No worker: none is needed, a worker on standby checks in time, or the maximum of workers
    /// runs.
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
    /// The workers that wait for an answer, including the main one, with the time of sending.
    sending: HashMap<WorkerId, Moment>,
    /// The number of workers besides the main one.
    threads: usize,
    /// The worker on standby, with the end of its sleep.
    standby: Option<(WorkerId, Moment)>,
    /// The number of the last worker that was started.
    last: u64,
    /// The duration of the main worker's last request. A single request at most doubles it, or
    /// raises it to half of [`PATIENCE`].
    usual: Duration,
}

impl SpareWorkers {
    /// Records that this worker sends from now on.
    pub(super) fn sends(&mut self, worker: WorkerId, now: Moment) {
        self.sending.insert(worker, now);
    }

    /// Records that the main worker has its answer. Returns whether the worker on standby must be
    /// woken, because it would sleep for too long before it ends.
    pub(super) fn main_is_back(&mut self, now: Moment) -> bool {
        if let Some(sent) = self.sending.remove(&WorkerId::MAIN) {
            let most = self.usual.max(PATIENCE / 4) * 2;
            self.usual = now.since(sent).min(most);
        }
        self.wake_before(now + self.patience())
    }

    /// Returns the worker to call because work was queued.
    pub(super) fn call(&mut self) -> Call {
        // A main worker that is not sending has been woken and takes the work itself.
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
        self.standby = Some((worker, look)); // so that no other one is started
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

    /// Returns the time from which all sending workers count as stuck.
    fn next_look(&self) -> Option<Moment> {
        self.sending
            .values()
            .max()
            .map(|latest| *latest + self.patience())
    }

    /// Returns whether the worker on standby must be woken, because it would sleep beyond `look`.
    /// If so, records `look` as the end of its sleep.
    fn wake_before(&mut self, look: Moment) -> bool {
        let Some((_, until)) = self.standby.as_mut().filter(|(_, until)| *until > look) else {
            return false;
        };
        *until = look;
        true
    }
}
