//! [`SpareWorkers`]: which thread sends renewals while a node's main worker waits for an answer.
//!
//! One spare worker *stands by* whenever work is queued while the main worker sends. It looks when
//! the request that was sent last has been under way for twice the usual time, [`PATIENCE`] at
//! least: if work is queued even then, all that send are stuck; it takes the next batch and calls
//! for the next worker to stand by. They leave when the main worker is back. All of this is
//! bookkeeping under the lock of the queue.
//!
//! A lock that is renewed on one connection and then on another costs a renewal more, because the
//! server reports the second as a change: no spare worker is to be used only because the server is
//! far.

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

/// Which worker has to be called so that one stands by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// It is not needed, or one will look in time, or all that there may be are there.
    None,
    /// The one that sleeps.
    Wake,
    /// One to be started.
    Start(WorkerId),
}

/// What a spare worker does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Take,
    StandBy(Moment),
    Leave,
}

/// The workers of one queue that send renewals.
#[derive(Default, Debug)]
pub(super) struct SpareWorkers {
    /// Since when each that waits for an answer does so, the main one included.
    sending: HashMap<WorkerId, Moment>,
    /// How many there are beside the main one.
    threads: usize,
    /// Which stands by, and until when it sleeps.
    standby: Option<(WorkerId, Moment)>,
    /// The number of the last one that was started.
    last: u64,
    /// How long the main worker's requests take. One that hangs doubles it at most.
    usual: Duration,
}

impl SpareWorkers {
    /// This worker sends from now on.
    pub(super) fn sends(&mut self, worker: WorkerId, now: Moment) {
        self.sending.insert(worker, now);
    }

    /// The main worker looks for its next work. Says whether the one that stands by must be woken,
    /// to leave.
    pub(super) fn main_is_back(&mut self, now: Moment) -> bool {
        if let Some(sent) = self.sending.remove(&WorkerId::MAIN) {
            let most = self.usual.max(PATIENCE / 4) * 2;
            self.usual = now.since(sent).min(most);
        }
        self.wake_before(now + self.patience())
    }

    /// Work is queued: which worker has to be called?
    pub(super) fn call(&mut self) -> Call {
        // If the main worker is not sending it has been woken, and takes it.
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
        self.standby = Some((worker, look)); // from here on: no other is started before it runs
        Call::Start(worker)
    }

    /// What this spare worker does next, where the queue has work or has none.
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

    /// This spare worker is gone, or was never started.
    pub(super) fn left(&mut self, worker: WorkerId) {
        self.standby.take_if(|(standby, _)| *standby == worker);
        self.threads -= 1;
    }

    /// How many threads there are beside the main one.
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

    /// When every worker that sends has been waiting for too long.
    fn next_look(&self) -> Option<Moment> {
        self.sending
            .values()
            .max()
            .map(|latest| *latest + self.patience())
    }

    /// Whether the one that stands by must be woken to look by `look`. It counts as woken then.
    fn wake_before(&mut self, look: Moment) -> bool {
        let Some((_, until)) = self.standby.as_mut().filter(|(_, until)| *until > look) else {
            return false;
        };
        *until = look;
        true
    }
}
