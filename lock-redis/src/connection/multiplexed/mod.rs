//! [`MultiplexedConnection`]: one connection that all threads use at once.
//!
//! Requests that are ready are sent in one write, and one of the waiting threads reads for all: the
//! connection has no thread of its own. A thread that is alone writes once, reads once, and waits
//! for no other thread.
//!
//! *Writing* never waits, except for a peer that takes no more bytes. *Reading* is the role of one
//! waiting thread, which hands the role over when it has its reply or its deadline passes. Three
//! invariants:
//!
//! - *While a thread waits, one reads.* The role may be handed to a thread A just as A's deadline
//!   passes. The choice of A and A's giving up both happen under the lock of the pending requests:
//!   either A has given up and another thread is chosen, or A is the reader when it gives up, and
//!   hands the role over ([`MultiplexedConnection::leave`]).
//! - *Unsent bytes have a writer.* A thread may leave its bytes to a reader that is awake: the
//!   reader checks for unsent bytes and decides to sleep under the same lock. A reader that ends
//!   its role wakes another thread as the reader, or writes for callbacks if no thread waits. A
//!   writer whose deadline passes while the peer takes no bytes wakes another thread to write.
//! - *A reply goes to its request.* Requests stay pending in the order of their bytes until they
//!   are replied to. Several requests may be sent as one ([`joined`]); those that have to be sent
//!   again are added at the end. A caller that gives up removes its request if no byte of it was
//!   sent and it is not joined; otherwise the request stays pending, abandoned, and its reply is
//!   dropped.
//!
//! A deadline that passes does not close the connection: a late reply finds its request. If the
//! oldest request is late and nothing was received for a while (`PendingRequests::is_mute`), the
//! connection gets no new requests. A connection is closed when it breaks, when a reply is invalid
//! or unexpected, when its server is superseded, and when the oldest request is overdue by `grace`,
//! a command timeout.

mod callbacks;
mod joined;
mod pending;
mod reading;
mod reply_poller;
#[cfg(test)]
pub(in crate::connection) mod tests;

pub(super) use pending::RequestId;
pub(crate) use pending::{CallbackRequest, OnReply, ReplyCheck};
pub(super) use reply_poller::ReplyPoller;

use super::{
    Batch, CallError, Connection, ConnectionLike, Server, ServerGeneration, Transport, WriteBuffer,
};
use crate::connection::Reply;
use crate::lua::join::Join;
use crate::lua::{Script, ScriptSet};
use lock_core::{Clock, Error, Moment};
use parking_lot::{Mutex, MutexGuard};
use pending::{CallResult, DeferredWakeups, Joining, MayHaveLeft, PendingRequests, ReplySlot};
use reading::ReplyInput;
use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A connection for all threads. See the [module's text](self).
pub(crate) struct MultiplexedConnection {
    pending: Mutex<PendingRequests>,
    transport: Transport,
    /// Locked only by the thread that writes, as `input` only by the thread that reads. So no
    /// thread waits for these locks.
    output: Mutex<Output>,
    input: Mutex<ReplyInput>,
    /// True if the peer took only a part of the bytes of the last write. Written under the lock of
    /// `pending`.
    stalled: AtomicBool,
    server: Arc<Server>,
    /// The generation of the endpoint's server to which this connection leads.
    generation: ServerGeneration,
    clock: Arc<dyn Clock>,
    /// The time by which the oldest request may be overdue before the connection is closed.
    grace: Duration,
    /// The scripts whose text was sent here: the server knows them when it gets a later request.
    scripts_sent: ScriptSet,
    is_one_store: bool,
    /// True if the server's identity was verified.
    verified: AtomicBool,
}

/// The writer's buffers.
#[derive(Default)]
struct Output {
    buffer: WriteBuffer,
    /// The empty buffer that is exchanged for a full one.
    spare: Vec<u8>,
}

thread_local! {
    /// The slot of the thread, which waits for one request at a time. Empty while in use: a
    /// callback that the thread runs may make a call, too.
    static SLOT: Cell<Option<Arc<ReplySlot>>> = const { Cell::new(None) };
}

/// The handle of one caller; other threads use the same connection at the same time.
impl ConnectionLike for Arc<MultiplexedConnection> {
    fn exchange_one(&mut self, batch: &Batch, by: Moment) -> Result<Reply, CallError> {
        // The deadline may have passed: this may be a later request of several.
        let now = self.clock.now();
        if now >= by {
            return Err(MayHaveLeft(false).timed_out(&self.server));
        }
        let slot = SLOT.try_with(Cell::take).ok().flatten().unwrap_or_default();
        let mut pending = self.pending.lock();
        let outcome = match pending.push(batch.bytes(), (now, by), &slot, Joining::Free) {
            Ok(id) => {
                if MultiplexedConnection::must_write_now(&pending) {
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

    /// Queues all requests before it waits for the first, so they are sent in one write.
    fn exchange(&mut self, batch: &Batch, by: Moment) -> (Vec<Reply>, Result<(), CallError>) {
        let now = self.clock.now();
        if now >= by {
            return (Vec::new(), Err(MayHaveLeft(false).timed_out(&self.server)));
        }
        let (mut queued, signal) = (Vec::with_capacity(batch.len()), Arc::default());
        let mut pending = self.pending.lock();
        for mark in batch.marks() {
            let slot = Arc::new(ReplySlot::new(&signal));
            let id = pending.push(batch.bytes_of(mark), (now, by), &slot, Joining::Never);
            queued.push((id, slot));
        }
        if MultiplexedConnection::must_write_now(&pending) {
            pending = self.write(pending);
        }
        drop(pending);
        let (mut replies, mut outcome) = (Vec::with_capacity(batch.len()), Ok(()));
        // Waits for each request, even after one has failed: otherwise a later request could have
        // the role of the reader, and no thread would read.
        for (id, slot) in queued {
            // The wait for the request before may have taken long.
            let now = self.clock.now();
            let reply = id.and_then(|id| self.wait(self.pending.lock(), id, &slot, now, by));
            match reply {
                Ok(reply) if outcome.is_ok() => replies.push(reply),
                Err(error) if outcome.is_ok() => outcome = Err(error),
                _ => {}
            }
        }
        if self.generation.is_over() {
            return (
                Vec::new(),
                Err(CallError::Unknown(self.server.superseded())),
            );
        }
        (replies, outcome)
    }

    fn is_one_store(&self) -> bool {
        self.is_one_store
    }

    fn history(&self) -> Option<&ServerGeneration> {
        Some(&self.generation).filter(|generation| generation.shows_history)
    }

    fn server(&self) -> &Arc<Server> {
        &self.server
    }

    fn close_with(&mut self, why: &Error) {
        self.end(why);
    }

    fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    fn mark_verified(&mut self) {
        self.verified.store(true, Ordering::Relaxed);
    }
}

impl MultiplexedConnection {
    /// The longest wait of a writer while the peer reads nothing, because a blocked writer does not
    /// notice that its reply has arrived.
    const WRITE_WAIT: Duration = Duration::from_millis(10);
    /// The most writes for other threads in a row, before a thread reads its own reply.
    const MAX_WRITES: usize = 16;

    /// Creates the connection. `dialed_in` is the time that the dial took, in which several replies
    /// arrived; `joins` lists the requests that may be joined.
    pub(super) fn new(
        connection: Connection,
        dialed_in: Duration,
        failures: u64,
        grace: Duration,
        joins: &'static [Join],
    ) -> io::Result<Self> {
        let (server, clock) = (
            Arc::clone(&connection.server),
            Arc::clone(&connection.clock),
        );
        let generation = connection.generation().clone();
        let is_one_store = connection.is_one_store();
        let transport = connection.into_transport().ok_or(ErrorKind::NotConnected)?;
        Ok(Self {
            pending: Mutex::new(PendingRequests::new(
                clock.now(),
                dialed_in,
                failures,
                joins,
            )),
            transport,
            output: Mutex::default(),
            input: Mutex::default(),
            stalled: AtomicBool::new(false),
            server,
            generation,
            clock,
            grace,
            scripts_sent: ScriptSet::default(),
            is_one_store,
            verified: AtomicBool::new(false),
        })
    }

    /// Returns `true` if the text of this script was never sent here, and marks it as sent.
    pub(super) fn is_first_text(&self, script: &Script) -> bool {
        self.scripts_sent.insert(script)
    }

    /// Returns `true` if the calling thread has to write the unsent bytes itself: no thread writes,
    /// and they cannot be left to the reader. They can if the reader is awake and the server has
    /// enough requests: the reader may run after all threads woken with it, and the server must not
    /// run out of requests meanwhile.
    fn must_write_now(pending: &PendingRequests) -> bool {
        let reader_will = pending.reader.is_some() && !pending.asleep;
        pending.wants_writer() && !(reader_will && pending.is_peer_busy())
    }

    /// Waits for the reply. Meanwhile reads for all threads while this thread is the reader, and
    /// writes for them if the reader does not.
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
                && let Some(may_have_left) = pending.abandon(id)
            {
                self.leave(pending, id);
                return Err(may_have_left.timed_out(&self.server));
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
                if slot.has_reply() {
                    continue;
                }
            }
            if reads && pending.reader == Some(id) {
                pending.asleep = true;
                // The sleep ends later by the time that has passed since `now` was read.
                let mut longest = self.patience(&pending).min(by).since(now);
                if pending.writing && self.stalled.load(Ordering::Acquire) {
                    // The writer may give up, and leave the rest to this thread.
                    longest = longest.min(Self::WRITE_WAIT);
                }
                drop(pending);
                pending = match self.read(longest, slot) {
                    Ok(outcome) => return outcome,
                    Err(pending) => pending,
                };
            } else {
                drop(pending);
                self.clock.wait(&slot.signal, by);
                // A thread with its reply has no role to hand over, unless the peer takes no more
                // bytes.
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

    /// Returns the moment at which the connection is closed if the oldest request has no reply.
    fn patience(&self, pending: &PendingRequests) -> Moment {
        pending
            .oldest()
            .map_or(Moment::NEVER, |oldest| oldest + self.grace)
    }

    /// Hands over the roles of a thread whose request was abandoned, or is no longer pending.
    fn leave<'a>(&'a self, mut pending: MutexGuard<'a, PendingRequests>, id: RequestId) {
        let mut wakeups = DeferredWakeups::default();
        if pending.reader == Some(id) {
            pending = self.hand_over_reading(pending, &mut wakeups);
        }
        pending.wake_a_writer(&mut wakeups);
        drop(self.deliver(pending, wakeups));
    }

    /// Makes the first waiting thread the reader. If none waits, writes the bytes that callbacks
    /// wait for.
    fn hand_over_reading<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
        wakeups: &mut DeferredWakeups,
    ) -> MutexGuard<'a, PendingRequests> {
        pending.hand_over_reading(wakeups);
        if pending.reader.is_none() && pending.has_callbacks() && pending.wants_writer() {
            pending = self.write(pending);
        }
        pending
    }

    /// Writes the unsent bytes, and those that are added meanwhile, as far as the peer takes them.
    fn write<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
    ) -> MutexGuard<'a, PendingRequests> {
        pending.writing = true;
        for _ in 0..Self::MAX_WRITES {
            let mut output = self.output.lock();
            let empty = mem::take(&mut output.spare);
            let bytes = pending.take_unsent(empty);
            drop(pending);
            let outcome = self.transport.write(&mut output.buffer, &bytes);
            pending = self.pending.lock();
            let sent = outcome.as_ref().map_or(0, |progress| progress.taken);
            output.spare = pending.put_back(bytes, sent);
            drop(output);
            let progress = match outcome {
                Ok(progress) => progress,
                Err(error) => {
                    pending.writing = false;
                    return self.fail(pending, &self.server.io_error("take a request", error));
                }
            };
            pending.backlog = progress.backlog;
            self.stalled.store(progress.stalled, Ordering::Release);
            pending.writing = false;
            if progress.stalled || !pending.wants_writer() {
                return pending;
            }
            pending.writing = true;
        }
        pending.writing = false;
        pending
    }

    /// Waits shortly for the peer to take more bytes, and for replies if this thread reads.
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
        let longest = by.min(patience).since(now).min(Self::WRITE_WAIT);
        let ready = self.transport.wait(reads, longest);
        let mut pending = self.pending.lock();
        pending.writing = false;
        if ready {
            drop(pending);
            return self.read_available();
        }
        if reads && self.clock.now() >= patience {
            self.give_up(pending)
        } else {
            pending
        }
    }

    /// Closes the connection because the oldest request is overdue for too long.
    fn give_up<'a>(
        &'a self,
        pending: MutexGuard<'a, PendingRequests>,
    ) -> MutexGuard<'a, PendingRequests> {
        self.fail(
            pending,
            &self.server.io_error("answer", ErrorKind::TimedOut.into()),
        )
    }

    fn fail<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingRequests>,
        error: &Error,
    ) -> MutexGuard<'a, PendingRequests> {
        let mut wakeups = DeferredWakeups::default();
        self.fail_all(&mut pending, error, &mut wakeups);
        self.deliver(pending, wakeups)
    }

    fn fail_all(
        &self,
        pending: &mut PendingRequests,
        error: &Error,
        wakeups: &mut DeferredWakeups,
    ) {
        pending.fail_all(error, wakeups);
        // Wakes the thread that sleeps in the socket, which then sees the failure.
        self.transport.shut();
    }

    /// Unlocks the pending requests to wake threads and run callbacks, which may both lock them.
    fn deliver<'a>(
        &'a self,
        pending: MutexGuard<'a, PendingRequests>,
        wakeups: DeferredWakeups,
    ) -> MutexGuard<'a, PendingRequests> {
        if wakeups.wake.is_empty() && wakeups.callbacks.is_empty() {
            return pending;
        }
        drop(pending);
        wakeups.wake.iter().for_each(|slot| slot.signal.raise());
        for (callback, outcome) in wakeups.callbacks {
            self.run_callback(callback, outcome);
        }
        self.pending.lock()
    }

    /// Returns `true` if a new request may be sent on this connection.
    ///
    /// Checks the socket if the connection was idle for long, or other connections have failed: so
    /// a server that has gone away fails no request. A mute connection gets no new requests, but
    /// its pending requests still wait: their replies may only be late.
    pub(super) fn is_usable(&self, now: Moment, failures: u64) -> bool {
        let mut pending = self.pending.lock();
        if self.generation.is_over() {
            drop(self.fail(pending, &self.server.superseded()));
            return false;
        }
        // If all callers have given up, no thread has read later replies. Callbacks have the
        // poller.
        if pending.has_only_abandoned() && pending.reader.is_none() && !pending.writing {
            pending = self.read_unattended(pending);
        }
        if pending.is_closed() || pending.is_mute(now, self.grace) || self.patience(&pending) <= now
        {
            return false;
        }
        if pending.is_empty() && pending.reader.is_none() && !pending.writing {
            let is_stale = now.since(pending.last_received()) > Connection::FRESH
                || pending.failures_seen != failures;
            if is_stale && !self.transport.is_quiet() {
                let error = self
                    .server
                    .io_error("answer", ErrorKind::UnexpectedEof.into());
                drop(self.fail(pending, &error));
                return false;
            }
            pending.failures_seen = failures;
        }
        true
    }

    /// Closes the connection with this error for all callers.
    pub(super) fn end(&self, why: &Error) {
        drop(self.fail(self.pending.lock(), why));
    }

    fn is_closed(&self) -> bool {
        self.pending.lock().is_closed()
    }
}

impl Drop for MultiplexedConnection {
    /// Fails callbacks that are still pending: if their requests were sent, the outcome stays
    /// unknown.
    fn drop(&mut self) {
        let error = self
            .server
            .io_error("answer", ErrorKind::NotConnected.into());
        drop(self.fail(self.pending.lock(), &error));
    }
}
