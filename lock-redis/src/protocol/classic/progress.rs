//! [`Progress`]: how far an attempt of several commands has come, for where it is sent on from one
//! node to the next.

use crate::connection::Reply;
use lock_core::backend::Failure;
use std::time::Duration;

/// What an attempt of several commands has heard so far.
///
/// A slot of a cluster may move between two of them, and the next is then turned away where the
/// first was carried out. Begun anew at the slot's next node, the attempt would find the key that
/// it made itself, and take it for another's: no client would have the lock, and where its `EXPIRE`
/// is still to come, for ever. So it goes on there where it stood: what was answered is not sent
/// again.
#[derive(Debug, Default)]
pub(super) struct Progress {
    heard: Vec<Reply>,
    wrote: bool,
    begun: Option<Duration>,
}

impl Progress {
    /// The answer to the command at this place, if it was given.
    pub(super) fn heard(&self, place: usize) -> Option<&Reply> {
        self.heard.get(place)
    }

    /// The next command was answered.
    pub(super) fn hear(&mut self, reply: Reply) {
        self.heard.push(reply);
    }

    /// The time at which the attempt began: `now` the first time that it is needed.
    pub(super) fn begun(&mut self, now: impl FnOnce() -> Duration) -> Duration {
        *self.begun.get_or_insert_with(now)
    }

    /// Something is in the store that was not finished.
    pub(super) fn wrote(&mut self) {
        self.wrote = true;
    }

    /// What the attempt came to, when it is sent on no more: one that has written something and
    /// failed then may have left that behind.
    pub(super) fn settle<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        outcome.map_err(|failure| {
            if self.wrote {
                Failure::Unknown(failure.into_error())
            } else {
                failure
            }
        })
    }
}
