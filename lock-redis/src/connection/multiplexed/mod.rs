//! [`MultiplexedConnection`]: one connection that all threads use at once.
//!
//! The requests of all who are ready leave in one write, and one of those who wait reads for everybody; there is no
//! thread of its own behind it. A thread that is alone writes once, reads once, and meets nobody.
//!
//! # The two roles
//!
//! *Writing* is short and never waits, except where the peer takes no more: then the writer waits for that, looks up
//! often, and everybody else only leaves its bytes and minds its own deadline. *ReplyInput* is for one who waits itself.
//! When it has its answer or its patience ends, it hands the role on to the first in pending. Three things must never be:
//!
//! - *Somebody waits, and nobody reads.* A is handed the role at the very moment its deadline comes. Both happen under
//!   the lock of the pending: either A has left before, then it is not in the pending and somebody else is chosen; or it is
//!   the reader when it leaves, sees that, and hands the role on ([`MultiplexedConnection::leave`]). An answer cannot come between: only
//!   the reader takes answers from the socket, and A has not begun to read.
//! - *Bytes wait, and nobody writes.* Who enters while the reader is awake may leave its bytes to it: the reader looks
//!   for bytes under the lock in which it decides to sleep, so either it sees them, or who enters sees it asleep and
//!   writes itself. An awake reader that leaves makes another the reader, awake. A writer that gives up while the peer
//!   takes nothing has another one woken, and whoever leaves in such times looks whether that is needed again.
//! - *An answer goes to the wrong one.* Places stay in the pending, in the order of their bytes, until their answer has
//!   come. Whoever gives up before its bytes left takes them back; afterwards its request has no owner, and the answer is
//!   dropped.
//!
//! # Its end
//!
//! A caller whose deadline passes is no reason to end the connection: a late answer finds its request. If nothing at all
//! was heard meanwhile, the connection gets no new requests, and those who wait on it wait on. It ends when it breaks,
//! when what comes is no answer, and when the oldest request has been overdue for as long as a command may take
//! (`grace`): then nobody believes any more that it will be answered.

mod callbacks;
mod pending;
mod reading;
mod reply_poller;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use pending::{CallbackRequest, ReplyCheck};
pub(super) use reply_poller::ReplyPoller;

use super::{CallError, Connection, Server, ServerGeneration, Stream};
use lock_core::{Clock, Error, Moment};
use parking_lot::{Mutex, MutexGuard};
use pending::{CallResult, DeferredWakeups, MayHaveLeft, PendingRequests, ReplySlot, RequestId};
use reading::ReplyInput;
use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use transport::{Transport, WriteBuffer};

/// A connection for everybody.
pub(crate) struct MultiplexedConnection {
    pending: Mutex<PendingRequests>,
    transport: Transport,
    /// Locked by whoever has the role, and so never waited for.
    output: Mutex<WriteBuffer>,
    input: Mutex<ReplyInput>,
    /// Whether the peer has lately taken less than it was given. Set and cleared under the lock of the pending.
    stalled: AtomicBool,
    server: Arc<Server>,
    /// Which of the endpoint's servers it leads to.
    generation: ServerGeneration,
    clock: Arc<dyn Clock>,
    /// How long the oldest request may be overdue.
    grace: Duration,
    /// The scripts whose text was sent here: whatever comes later in this pending finds them known.
    scripts_sent: AtomicU32,
    /// Whether it was found out here which server this is.
    verified: AtomicBool,
}

thread_local! {
    /// A thread has one request at a time. Taken out while it is in use: what an callback calls may come here again.
    static SLOT: Cell<Option<Arc<ReplySlot>>> = const { Cell::new(None) };
}

impl MultiplexedConnection {
    /// How long a writer waits for the peer before it looks up.
    const WRITE_WAIT: Duration = Duration::from_millis(10);
    /// How often somebody writes for others before it looks after itself.
    const MAX_WRITES: usize = 16;

    pub(in crate::connection) fn new(
        link: Connection,
        failures: u64,
        grace: Duration,
    ) -> io::Result<Self> {
        let (server, clock) = (Arc::clone(link.server()), Arc::clone(&link.clock));
        let generation = link.generation().clone();
        let stream: Stream = link.into_stream().ok_or(ErrorKind::NotConnected)?;
        Ok(Self {
            pending: Mutex::new(PendingRequests::new(clock.now(), failures)),
            transport: Transport::new(stream)?,
            output: Mutex::default(),
            input: Mutex::default(),
            stalled: AtomicBool::new(false),
            server,
            generation,
            clock,
            grace,
            scripts_sent: AtomicU32::new(0),
            verified: AtomicBool::new(false),
        })
    }

    /// Whether the text of this script, one bit, is yet to be sent here. It is taken to be from now on.
    pub(in crate::connection) fn is_first_use(&self, script: u32) -> bool {
        self.scripts_sent.fetch_or(script, Ordering::Relaxed) & script == 0
    }

    /// Whether it was found out before, on this connection, which server this is.
    pub(in crate::connection) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    /// It was found out.
    pub(in crate::connection) fn mark_verified(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    /// Sends a request, encoded, and returns the answer to it.
    pub(in crate::connection) fn call(&self, request: &[u8], by: Moment) -> CallResult {
        // It may be the second request of an exchange.
        let now = self.clock.now();
        if now >= by {
            return Err(self.too_late(MayHaveLeft(false)));
        }
        let slot = SLOT.try_with(Cell::take).ok().flatten().unwrap_or_default();
        let mut pending = self.pending.lock();
        let outcome = match pending.push(request, by, &slot) {
            Ok(id) => {
                if Self::must_write_now(&pending) {
                    pending = self.write(pending);
                }
                self.wait(pending, id, &slot, now, by)
            }
            Err(error) => Err(error),
        };
        let _ending = SLOT.try_with(|kept| kept.set(Some(slot)));
        match outcome {
            Ok(_) if self.generation.is_over() => Err(CallError::Unknown(self.server.superseded())),
            outcome => outcome,
        }
    }

    /// Whether whoever has just entered writes itself, and does not leave that to a reader that is awake anyway: it is
    /// behind all those that were woken together with it, and the server shall not wait for it with nothing to do.
    fn must_write_now(pending: &PendingRequests) -> bool {
        let reader_will = pending.reader.is_some() && !pending.asleep;
        pending.wants_writer() && !(reader_will && pending.is_peer_busy())
    }

    /// Waits for the answer, and does meanwhile what must be done for all.
    fn wait<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
        id: RequestId,
        slot: &Arc<ReplySlot>,
        mut now: Moment,
        by: Moment,
    ) -> CallResult {
        loop {
            if let Some(outcome) = slot.take() {
                self.leave(pending, id);
                return outcome;
            }
            if now >= by
                && let Some(left) = pending.abandon(id)
            {
                self.leave(pending, id);
                return Err(self.too_late(left));
            }
            if pending.reader.is_none() {
                pending.reader = Some(id);
            }
            let reads = pending.reader == Some(id);
            if pending.wants_writer() && (reads || pending.asleep) {
                pending = self.write(pending);
                if pending.wants_writer() {
                    pending = self.wait_for_peer(pending, id, by);
                    now = self.clock.now();
                    continue;
                }
                if slot.has_answer() {
                    continue;
                }
            }
            if reads && pending.reader == Some(id) {
                pending.asleep = true;
                let until = self.patience(&pending).min(by);
                drop(pending);
                pending = match self.read(until, slot) {
                    Ok(outcome) => return outcome,
                    Err(pending) => pending,
                };
            } else {
                drop(pending);
                self.clock.wait(&slot.signal, by);
                // Whoever answers us does so while we have no role, unless the peer does not take what we write.
                if !self.stalled.load(Ordering::Acquire)
                    && let Some(outcome) = slot.take()
                {
                    return outcome;
                }
                pending = self.pending.lock();
            }
            now = self.clock.now();
        }
    }

    /// Until when the oldest request may go unanswered before the connection is given up.
    fn patience(&self, pending: &PendingRequests) -> Moment {
        pending.oldest().map_or(Moment::NEVER, |oldest| oldest + self.grace)
    }

    /// Somebody whose request is no longer in the pending, or has no owner any more, goes: what it had to do others must do.
    fn leave(&self, mut pending: MutexGuard<'_, PendingRequests>, id: RequestId) {
        let mut wakeups = DeferredWakeups::default();
        if pending.reader == Some(id) {
            pending.hand_over_reading(&mut wakeups);
        }
        if pending.wants_writer() && (pending.reader.is_none() || pending.asleep) {
            pending.wake_a_writer(&mut wakeups);
        }
        drop(self.conclude(pending, wakeups));
    }

    /// Writes what there is, also what comes meanwhile, as far as the peer takes it.
    fn write<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
    ) -> MutexGuard<'a, PendingRequests> {
        pending.writing = true;
        for _ in 0..Self::MAX_WRITES {
            let mut output = self.output.lock();
            let empty = std::mem::take(&mut output.spare);
            let bytes = pending.take_unsent(empty);
            drop(pending);
            let outcome = self.transport.write(&mut output, &bytes);
            pending = self.pending.lock();
            let sent = outcome.as_ref().map_or(0, |written| written.taken);
            output.spare = pending.put_back(bytes, sent);
            drop(output);
            let written = match outcome {
                Ok(written) => written,
                Err(error) => {
                    pending.writing = false;
                    return self.fail(pending, &self.server.io_error("take a request", error));
                }
            };
            pending.backlog = written.backlog;
            self.stalled.store(written.stalled, Ordering::Release);
            pending.writing = false;
            if written.stalled || !pending.wants_writer() {
                return pending;
            }
            pending.writing = true;
        }
        pending.writing = false;
        pending
    }

    /// The peer takes no more for the moment: waits a little for that, and for answers, if we are the one who reads.
    fn wait_for_peer<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
        id: RequestId,
        by: Moment,
    ) -> MutexGuard<'a, PendingRequests> {
        let reads = pending.reader == Some(id);
        pending.writing = true;
        let patience = self.patience(&pending);
        drop(pending);
        let now = self.clock.now();
        let slice = by.min(patience).since(now).min(Self::WRITE_WAIT);
        let ready = self.transport.wait(reads, slice);
        let mut pending = self.pending.lock();
        pending.writing = false;
        match ready {
            Err(error) => self.fail(pending, &self.server.io_error("take a request", error)),
            Ok(true) => {
                drop(pending);
                self.read_what_is_there()
            }
            Ok(_) if reads && self.clock.now() >= patience => self.give_up(pending),
            Ok(_) => pending,
        }
    }

    /// The oldest request is overdue for too long.
    fn give_up<'a>(
        &'a self,
        pending: MutexGuard<'a, PendingRequests>,
    ) -> MutexGuard<'a, PendingRequests> {
        self.fail(pending, &self.server.io_error("answer", ErrorKind::TimedOut.into()))
    }

    fn fail<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
        error: &Error,
    ) -> MutexGuard<'a, PendingRequests> {
        let mut wakeups = DeferredWakeups::default();
        self.end(&mut pending, error, &mut wakeups);
        self.conclude(pending, wakeups)
    }

    fn end(&self, pending: &mut PendingRequests, error: &Error, wakeups: &mut DeferredWakeups) {
        pending.fail_all(error, wakeups);
        // Whoever sleeps in the socket wakes up and sees it.
        self.transport.shut();
    }

    /// Tells those who are concerned. Not under the lock of the pending: who is woken would run into it, and what callbacks
    /// do is not ours.
    fn conclude<'a>(
        &'a self,
        pending: MutexGuard<'a, PendingRequests>,
        wakeups: DeferredWakeups,
    ) -> MutexGuard<'a, PendingRequests> {
        if wakeups.wake.is_empty() && wakeups.callbacks.is_empty() {
            return pending;
        }
        drop(pending);
        wakeups.wake.iter().for_each(|slot| slot.signal.raise());
        for (callback, by, outcome) in wakeups.callbacks {
            self.tell(callback, by, outcome);
        }
        self.pending.lock()
    }

    fn too_late(&self, MayHaveLeft(left): MayHaveLeft) -> CallError {
        let error = |what| self.server.io_error(what, ErrorKind::TimedOut.into());
        if left {
            CallError::Unknown(error("answer"))
        } else {
            CallError::NotSent(error("take a request"))
        }
    }

    /// Whether a new request may be put on it.
    ///
    /// Looks at the connection if it was idle for long, or others have died: a server that went away while nobody asked it
    /// anything costs no request. One that is mute gets no new ones, and those on it wait on: it may be the connection
    /// that is stuck, and not the server. The same goes for one whose oldest request is overdue for too long: it is dead,
    /// and nobody reads who could say so.
    pub(in crate::connection) fn is_usable(&self, now: Moment, failures: u64) -> bool {
        let mut pending = self.pending.lock();
        if self.generation.is_over() {
            drop(self.fail(pending, &self.server.superseded()));
            return false;
        }
        // All have given up: what has come since then nobody has read yet. Errands have the reply_poller.
        if pending.has_only_abandoned() && pending.reader.is_none() && !pending.writing {
            pending = self.read_unattended(pending);
        }
        if pending.is_closed() || pending.is_mute(now, self.grace) || self.patience(&pending) <= now
        {
            return false;
        }
        if pending.is_empty() && pending.reader.is_none() && !pending.writing {
            let is_stale = now.since(pending.last_heard()) > Connection::FRESH
                || pending.failures_seen != failures;
            if is_stale && !self.transport.is_quiet() {
                let error = self.server.io_error("answer", ErrorKind::UnexpectedEof.into());
                drop(self.fail(pending, &error));
                return false;
            }
            pending.failures_seen = failures;
        }
        true
    }

    /// Ends the connection, and tells everybody on it why.
    pub(in crate::connection) fn close_with(&self, why: &Error) {
        drop(self.fail(self.pending.lock(), why));
    }

    /// Ends the connection: what came in on it is no answer to what was asked.
    pub(in crate::connection) fn close(&self, why: &str) {
        self.close_with(&self.server.garbage(why));
    }

    /// Whether it can never be used again.
    fn is_closed(&self) -> bool {
        self.pending.lock().is_closed()
    }
}

impl Drop for MultiplexedConnection {
    /// Errands that are still under way are told that nobody will know.
    fn drop(&mut self) {
        let error = self.server.io_error("answer", ErrorKind::NotConnected.into());
        drop(self.fail(self.pending.lock(), &error));
    }
}
