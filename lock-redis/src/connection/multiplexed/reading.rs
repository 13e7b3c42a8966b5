//! ReplyInput for everybody: what comes on the socket finds those who wait for it.

use super::MultiplexedConnection;
use super::pending::{CallResult, DeferredWakeups, PendingRequests, ReplySlot, RequestId};
use super::transport::ReadBuffer;
use crate::connection::resp::ReplyParser;
use crate::reply::Reply;
use lock_core::Moment;
use parking_lot::MutexGuard;
use rustix::net::RecvFlags;
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// The id of one who is not in the pending, and reads.
const NO_REQUEST: RequestId = 0;

/// The reader's own.
#[derive(Default)]
pub(super) struct ReplyInput {
    input: ReadBuffer,
    parser: ReplyParser,
    replies: Vec<Reply>,
}

impl MultiplexedConnection {
    /// Sleeps until something comes or `until` has come, and gives it to those whose it is. If our answer is among it, the
    /// role is handed on.
    pub(super) fn read(
        &self,
        until: Moment,
        slot: &Arc<ReplySlot>,
    ) -> Result<CallResult, MutexGuard<'_, PendingRequests>> {
        let fill =
            |reading: &mut ReplyInput| reading.input.fill(&self.transport, &*self.clock, until);
        let (mut pending, mut wakeups) = self.read_with(fill, Some(slot));
        let outcome = slot.take();
        if outcome.is_some() {
            pending.hand_over_reading(&mut wakeups);
        }
        let pending = self.conclude(pending, wakeups);
        match outcome {
            Some(outcome) => Ok(outcome),
            None if self.clock.now() >= self.patience(&pending) => Err(self.give_up(pending)),
            None => Err(pending),
        }
    }

    /// Reads once, and notes whose the answers are.
    fn read_with(
        &self,
        fill: impl FnOnce(&mut ReplyInput) -> io::Result<bool>,
        mine: Option<&Arc<ReplySlot>>,
    ) -> (MutexGuard<'_, PendingRequests>, DeferredWakeups) {
        let mut wakeups = DeferredWakeups::default();
        let mut reading = self.input.lock();
        let filled = fill(&mut reading);
        let ReplyInput { input, parser, replies } = &mut *reading;
        let mut garbage = match &filled {
            Ok(true) => parser.cut(&mut input.plain, replies).err(),
            _ => None,
        };
        let mut pending = self.pending.lock();
        pending.asleep = false;
        if !replies.is_empty() {
            pending.heard(self.clock.now());
        }
        // Nothing is believed that came along with what nobody asked for: which of them is the answer?
        let (asked, came) =
            (pending.awaited(), replies.len() + usize::from(!input.plain.is_empty()));
        if garbage.is_none() && came > asked {
            garbage = Some("there is more than was asked for");
        }
        for reply in replies.drain(..) {
            if garbage.is_none() {
                garbage = pending.answer(reply, mine, &mut wakeups).err();
            }
        }
        if let Some(why) = garbage {
            self.end(&mut pending, &self.server.garbage(why), &mut wakeups);
        }
        let last_word = input.ended.then(|| ErrorKind::UnexpectedEof.into());
        if let Some(error) = filled.err().or(last_word) {
            self.end(&mut pending, &self.server.io_error("answer", error), &mut wakeups);
        }
        (pending, wakeups)
    }

    /// Reads without waiting, for one who has the role or found nobody else who writes or reads.
    pub(super) fn read_what_is_there(&self) -> MutexGuard<'_, PendingRequests> {
        let take =
            |reading: &mut ReplyInput| reading.input.take(&self.transport, RecvFlags::DONTWAIT);
        let (pending, wakeups) = self.read_with(take, None);
        self.conclude(pending, wakeups)
    }

    /// The same for one who is not in the pending, where nobody reads.
    pub(super) fn read_unattended<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
    ) -> MutexGuard<'a, PendingRequests> {
        pending.reader = Some(NO_REQUEST);
        // Whoever comes meanwhile writes itself.
        pending.asleep = true;
        drop(pending);
        pending = self.read_what_is_there();
        if !pending.is_empty() && self.clock.now() >= self.patience(&pending) {
            pending = self.give_up(pending);
        }
        self.leave(pending, NO_REQUEST);
        self.pending.lock()
    }
}
