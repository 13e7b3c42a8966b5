//! [`Progress`]: the replies that an attempt of several commands has received so far.

use crate::connection::Reply;
use lock_core::backend::Failure;
use std::time::Duration;

/// The replies to the commands of an attempt so far.
///
/// The algorithm runs anew behind each reply, over the replies that are there, up to the command
/// that it needs next. So it gives the same commands each time: it reads the clock once.
///
/// A slot of a cluster may move between two commands. The node that carried out the first then
/// refuses the second. An attempt that began anew at the next node would find its own key there and
/// take it for another client's: no client would have the lock, for ever if its `EXPIRE` was not
/// sent yet. So the attempt continues at the next node, and no command is sent twice.
#[derive(Debug, Default)]
pub(super) struct Progress {
    received: Vec<Reply>,
    wrote: bool,
    begun: Option<Duration>,
}

impl Progress {
    /// The reply to the command at this place, if it was received.
    pub(super) fn received(&self, place: usize) -> Option<&Reply> {
        self.received.get(place)
    }

    /// Adds the reply to the next command.
    pub(super) fn add_reply(&mut self, reply: Reply) {
        self.received.push(reply);
    }

    /// Returns the time of the attempt: `now` when it is first asked for, and the same from then on.
    pub(super) fn begin_or(&mut self, now: impl FnOnce() -> Duration) -> Duration {
        *self.begun.get_or_insert_with(now)
    }

    /// Notes that something unfinished may be in the store.
    pub(super) fn wrote(&mut self) {
        self.wrote = true;
    }

    /// Returns the outcome of an attempt that no node continues. An attempt that has written
    /// something and then failed may have left that behind, so its outcome is unknown.
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
