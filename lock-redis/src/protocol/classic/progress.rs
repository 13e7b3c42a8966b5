//! [`Progress`]: the replies that an attempt of several commands has received so far.

use crate::connection::Reply;
use lock_core::backend::Failure;
use std::time::Duration;

/// The replies to the commands of an attempt so far.
///
/// The algorithm runs again after each reply, with the replies received so far, up to the next
/// command that it needs. Each run must give the same commands, so the clock is read only once.
///
/// A slot of a cluster may move between two commands. The node that carried out the first then
/// refuses the second. If the attempt began anew at the next node, it would find its own key there
/// and take it for another client's. No client would hold the lock, which would stay busy until the
/// key expires; for ever, if `EXPIRE` was not sent yet. So the attempt continues at the next node
/// with the command that was refused, and no command is carried out twice.
#[derive(Debug, Default)]
pub(super) struct Progress {
    received: Vec<Reply>,
    wrote: bool,
    begun: Option<Duration>,
}

impl Progress {
    /// Returns the reply to the command at this place, if it was received.
    pub(super) fn received(&self, place: usize) -> Option<&Reply> {
        self.received.get(place)
    }

    /// Adds the reply to the next command.
    pub(super) fn add_reply(&mut self, reply: Reply) {
        self.received.push(reply);
    }

    /// Returns the time of the attempt: `now` at the first call, and that same time afterwards.
    pub(super) fn begin_or(&mut self, now: impl FnOnce() -> Duration) -> Duration {
        *self.begun.get_or_insert_with(now)
    }

    /// Notes that the attempt may have written something unfinished to the store.
    pub(super) fn wrote(&mut self) {
        self.wrote = true;
    }

    /// Returns the outcome of an attempt that no node continues. If an attempt has failed after it
    /// wrote something, that may still be in the store, so its outcome is unknown.
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
