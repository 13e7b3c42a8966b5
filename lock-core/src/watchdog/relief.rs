//! [`Reliefs`]: who sends a lane's renewals while its own thread waits for an answer that does not come.
//!
//! One thread *stands by* whenever something is queued while the lane's thread asks. It looks when the request that was
//! sent last has been under way for [`PATIENCE`]: if something is queued even then, all who send are stuck, and it takes
//! the next batch, on another connection, and calls for the next to stand by. They leave when the lane's thread is back.
//!
//! All of this is bookkeeping under the lock of the lane's work; the threads are the lane's.

use crate::clock::Moment;
use std::collections::HashMap;
use std::time::Duration;

/// How long a request may be under way before what is queued behind it is sent on another connection.
const PATIENCE: Duration = Duration::from_millis(20);

/// The most threads of a lane that send renewals beside its own.
const MOST: usize = 3;

/// The longest that one stands by without a look, when all others hang and nothing is queued. It is woken before.
const LOOK: Duration = Duration::from_secs(1);

/// A thread that sends renewals.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Sender(u64);

impl Sender {
    /// The lane's own.
    pub(super) const LANE: Self = Self(0);
}

/// Who has to be called so that somebody stands by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// It is not needed, or somebody will look in time, or all threads that there may be are there.
    Nobody,
    /// The one that sleeps.
    Wake,
    /// One to be started.
    Start(Sender),
}

/// What a relief does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Take,
    StandBy(Moment),
    Leave,
}

/// The senders of one lane.
#[derive(Default, Debug)]
pub(super) struct Reliefs {
    /// Since when each that is asking does so.
    asking: HashMap<Sender, Moment>,
    /// How many threads there are beside the lane's own.
    threads: usize,
    /// Who stands by, and until when it sleeps.
    standby: Option<(Sender, Moment)>,
    /// The number of the last one that was started.
    last: u64,
}

impl Reliefs {
    /// This one is asking from now on.
    pub(super) fn sends(&mut self, sender: Sender, now: Moment) {
        self.asking.insert(sender, now);
    }

    /// The lane's own thread looks for its next work. Says whether the one that stands by must be woken, to leave.
    pub(super) fn lane_is_back(&mut self, now: Moment) -> bool {
        self.asking.remove(&Sender::LANE);
        self.wake_before(now + PATIENCE)
    }

    /// Something is queued: who has to be called?
    pub(super) fn call(&mut self) -> Call {
        // If the lane's own thread is not asking it has been woken, and takes it.
        let Some(look) = self.next_look().filter(|_| self.lane_is_asking()) else {
            return Call::Nobody;
        };
        if self.standby.is_some() {
            return if self.wake_before(look) { Call::Wake } else { Call::Nobody };
        }
        if self.threads == MOST {
            return Call::Nobody;
        }
        self.threads += 1;
        self.last += 1;
        let sender = Sender(self.last);
        self.standby = Some((sender, look)); // from here on: nobody starts another before this one runs
        Call::Start(sender)
    }

    /// What this relief does next, where the queue has work or has none.
    pub(super) fn next(
        &mut self,
        sender: Sender,
        has_work: bool,
        now: Moment,
        stopping: bool,
    ) -> Next {
        self.asking.remove(&sender);
        self.standby.take_if(|(standby, _)| *standby == sender);
        match self.next_look() {
            Some(look) if self.lane_is_asking() && !stopping => {
                let are_stuck = look <= now;
                if are_stuck && has_work {
                    return Next::Take;
                }
                if self.standby.is_none() {
                    let until = if are_stuck { now + LOOK } else { look };
                    self.standby = Some((sender, until));
                    return Next::StandBy(until);
                }
            }
            _ => {}
        }
        self.left(sender);
        Next::Leave
    }

    /// This relief is gone, or was never started.
    pub(super) fn left(&mut self, sender: Sender) {
        self.standby.take_if(|(standby, _)| *standby == sender);
        self.threads -= 1;
    }

    /// How many threads there are beside the lane's own.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    fn lane_is_asking(&self) -> bool {
        self.asking.contains_key(&Sender::LANE)
    }

    /// When everybody who is asking has been asking for too long.
    fn next_look(&self) -> Option<Moment> {
        self.asking.values().max().map(|latest| *latest + PATIENCE)
    }

    /// Whether the one that stands by must be woken to look by `look`. It counts as woken from then on.
    fn wake_before(&mut self, look: Moment) -> bool {
        let Some((_, until)) = self.standby.as_mut().filter(|(_, until)| *until > look) else {
            return false;
        };
        *until = look;
        true
    }
}
