//! Reading for all callers: assigns the received replies to their requests.

use super::MultiplexedConnection;
use super::pending::{CallResult, DeferredWakeups, PendingRequests, ReplySlot, RequestId};
use crate::connection::{ReadBuffer, Reply, ReplyReader};
use parking_lot::MutexGuard;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

/// The id of a reader that has no pending request.
const NO_REQUEST: RequestId = 0;

/// The reader's buffers.
#[derive(Default)]
pub(super) struct ReplyInput {
    buffer: ReadBuffer,
    reader: ReplyReader,
    replies: Vec<Reply>,
}

impl MultiplexedConnection {
    /// Sleeps until bytes arrive, for about `longest` or less, and distributes the replies. Hands
    /// the role of the reader over if the caller's own reply is among them. Otherwise closes the
    /// connection if the oldest request is overdue for too long.
    pub(super) fn read(
        &self,
        longest: Duration,
        slot: &Arc<ReplySlot>,
    ) -> Result<CallResult, MutexGuard<'_, PendingRequests>> {
        let fill = |input: &mut ReplyInput| {
            self.transport
                .read(&mut input.buffer, input.reader.input(), longest)
        };
        let (mut pending, mut wakeups) = self.read_with(fill, Some(slot));
        let outcome = slot.take();
        if outcome.is_some() {
            pending = self.hand_over_reading(pending, &mut wakeups);
        }
        let pending = self.deliver(pending, wakeups);
        match outcome {
            Some(outcome) => Ok(outcome),
            None if self.clock.now() >= self.patience(&pending) => Err(self.give_up(pending)),
            None => Err(pending),
        }
    }

    /// Reads once, and assigns the replies to their requests.
    fn read_with(
        &self,
        fill: impl FnOnce(&mut ReplyInput) -> io::Result<bool>,
        mine: Option<&Arc<ReplySlot>>,
    ) -> (MutexGuard<'_, PendingRequests>, DeferredWakeups) {
        let mut wakeups = DeferredWakeups::default();
        let mut input = self.input.lock();
        let filled = fill(&mut input);
        let ReplyInput {
            buffer,
            reader,
            replies,
        } = &mut *input;
        let mut invalid = None;
        if matches!(filled, Ok(true)) {
            invalid = loop {
                match reader.next() {
                    Ok(Some(reply)) => replies.push(reply),
                    Ok(None) => break None,
                    Err(why) => break Some(why),
                }
            };
        }
        let mut pending = self.pending.lock();
        pending.asleep = false;
        if !replies.is_empty() {
            pending.received(self.clock.now());
        }
        // If there is one reply too many, none counts: it is unknown which reply belongs to which
        // request.
        if invalid.is_none() && replies.len() + usize::from(!reader.is_empty()) > pending.awaited()
        {
            invalid = Some("there is more than was asked for");
        }
        for reply in replies.drain(..) {
            if invalid.is_none() {
                invalid = pending.assign(reply, mine, &mut wakeups).err();
            }
        }
        if let Some(why) = invalid {
            self.fail_all(&mut pending, &self.server.garbage(why), &mut wakeups);
        }
        let ended = buffer.ended.then(|| ErrorKind::UnexpectedEof.into());
        if let Some(error) = filled.err().or(ended) {
            self.fail_all(
                &mut pending,
                &self.server.io_error("answer", error),
                &mut wakeups,
            );
        }
        (pending, wakeups)
    }

    /// Reads without waiting. Called by the thread that has the role of the reader.
    pub(super) fn read_available(&self) -> MutexGuard<'_, PendingRequests> {
        let fill = |input: &mut ReplyInput| {
            self.transport
                .read_available(&mut input.buffer, input.reader.input())
        };
        let (pending, wakeups) = self.read_with(fill, None);
        self.deliver(pending, wakeups)
    }

    /// Reads without waiting, for a thread that has no pending request, while no thread reads.
    pub(super) fn read_unattended<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
    ) -> MutexGuard<'a, PendingRequests> {
        pending.reader = Some(NO_REQUEST);
        // A caller that arrives meanwhile writes its own bytes.
        pending.asleep = true;
        drop(pending);
        pending = self.read_available();
        if !pending.is_empty() && self.clock.now() >= self.patience(&pending) {
            pending = self.give_up(pending);
        }
        self.leave(pending, NO_REQUEST);
        self.pending.lock()
    }
}
