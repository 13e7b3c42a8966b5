//! [`Duplex`]: one connection that all threads use at once.
//!
//! The requests of all who are ready leave in one write, and one of those who wait reads for everybody; there is no
//! thread of its own behind it. A thread that is alone writes once, reads once, and meets nobody.
//!
//! # The two roles
//!
//! *Writing* is short and never waits, except where the peer takes no more: then the writer waits for that, looks up
//! often, and everybody else only leaves its bytes and minds its own deadline. *Reading* is for one who waits itself.
//! When it has its answer or its patience ends, it hands the role on to the first in line. Three things must never be:
//!
//! - *Somebody waits, and nobody reads.* A is handed the role at the very moment its deadline comes. Both happen under
//!   the lock of the line: either A has left before, then it is not in the line and somebody else is chosen; or it is
//!   the reader when it leaves, sees that, and hands the role on ([`Duplex::leave`]). An answer cannot come between: only
//!   the reader takes answers from the socket, and A has not begun to read.
//! - *Bytes wait, and nobody writes.* Who enters while the reader is awake may leave its bytes to it: the reader looks
//!   for bytes under the lock in which it decides to sleep, so either it sees them, or who enters sees it asleep and
//!   writes itself. An awake reader that leaves makes another the reader, awake. A writer that gives up while the peer
//!   takes nothing has another one woken, and whoever leaves in such times looks whether that is needed again.
//! - *An answer goes to the wrong one.* Places stay in the line, in the order of their bytes, until their answer has
//!   come. Whoever gives up before its bytes left takes them back; afterwards its place has no owner, and the answer is
//!   dropped.
//!
//! # Its end
//!
//! A caller whose deadline passes is no reason to end the connection: a late answer finds its place. If nothing at all
//! was heard meanwhile, the connection gets no new requests, and those who wait on it wait on. It ends when it breaks,
//! when what comes is no answer, and when the oldest request has been overdue for as long as a command may take
//! (`grace`): then nobody believes any more that it will be answered.

mod collector;
mod errand;
mod line;
mod reading;
#[cfg(test)]
mod tests;
mod transport;

pub(super) use collector::Collector;
pub(crate) use line::{Errand, Heard};

use super::{CallError, Link, Serial, Server, Stream};
use line::{Aftermath, Line, MayHaveLeft, Outcome, Slot, Ticket};
use lock_core::{Clock, Error, Moment};
use parking_lot::{Mutex, MutexGuard};
use reading::Reading;
use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use transport::{Outlet, Transport};

/// A connection for everybody.
pub(crate) struct Duplex {
    line: Mutex<Line>,
    transport: Transport,
    /// Locked by whoever has the role, and so never waited for.
    outlet: Mutex<Outlet>,
    inlet: Mutex<Reading>,
    /// Whether the peer has lately taken less than it was given. Set and cleared under the lock of the line.
    stalled: AtomicBool,
    server: Arc<Server>,
    /// Which of the endpoint's servers it leads to.
    serial: Serial,
    clock: Arc<dyn Clock>,
    /// How long the oldest request may be overdue.
    grace: Duration,
    /// The scripts whose text was sent here: whatever comes later in this line finds them known.
    taught: AtomicU32,
    /// Whether it was found out here which server this is.
    vouched: AtomicBool,
}

thread_local! {
    /// A thread has one request at a time. Taken out while it is in use: what an errand calls may come here again.
    static SLOT: Cell<Option<Arc<Slot>>> = const { Cell::new(None) };
}

impl Duplex {
    /// How long a writer waits for the peer before it looks up.
    const STALL: Duration = Duration::from_millis(10);
    /// How often somebody writes for others before it looks after itself.
    const FAVOURS: usize = 16;

    pub(in crate::link) fn new(link: Link, deaths: u64, grace: Duration) -> io::Result<Self> {
        let (server, clock) = (Arc::clone(link.server()), Arc::clone(&link.clock));
        let serial = link.serial().clone();
        let stream: Stream = link.into_stream().ok_or(ErrorKind::NotConnected)?;
        Ok(Self {
            line: Mutex::new(Line::new(clock.now(), deaths)),
            transport: Transport::new(stream)?,
            outlet: Mutex::default(),
            inlet: Mutex::default(),
            stalled: AtomicBool::new(false),
            server,
            serial,
            clock,
            grace,
            taught: AtomicU32::new(0),
            vouched: AtomicBool::new(false),
        })
    }

    /// Whether the text of this script, one bit, is yet to be sent here. It is taken to be from now on.
    pub(in crate::link) fn is_to_be_taught(&self, script: u32) -> bool {
        self.taught.fetch_or(script, Ordering::Relaxed) & script == 0
    }

    /// Whether it was found out before, on this connection, which server this is.
    pub(in crate::link) fn is_vouched_for(&self) -> bool {
        self.vouched.load(Ordering::Relaxed)
    }

    /// It was found out.
    pub(in crate::link) fn vouch(&self) {
        self.vouched.store(true, Ordering::Relaxed);
    }

    /// Sends a request, encoded, and returns the answer to it.
    pub(in crate::link) fn call(&self, request: &[u8], by: Moment) -> Outcome {
        // It may be the second request of an exchange.
        let now = self.clock.now();
        if now >= by {
            return Err(self.too_late(MayHaveLeft(false)));
        }
        let slot = SLOT.try_with(Cell::take).ok().flatten().unwrap_or_default();
        let mut line = self.line.lock();
        let outcome = match line.enter(request, by, &slot) {
            Ok(ticket) => {
                if Self::must_write_now(&line) {
                    line = self.write(line);
                }
                self.wait(line, ticket, &slot, now, by)
            }
            Err(error) => Err(error),
        };
        let _ending = SLOT.try_with(|kept| kept.set(Some(slot)));
        match outcome {
            Ok(_) if self.serial.is_over() => Err(CallError::Unknown(self.server.superseded())),
            outcome => outcome,
        }
    }

    /// Whether whoever has just entered writes itself, and does not leave that to a reader that is awake anyway: it is
    /// behind all those that were woken together with it, and the server shall not wait for it with nothing to do.
    fn must_write_now(line: &Line) -> bool {
        let reader_will = line.reader.is_some() && !line.asleep;
        line.wants_writer() && !(reader_will && line.is_peer_busy())
    }

    /// Waits for the answer, and does meanwhile what must be done for all.
    fn wait<'a>(
        &'a self,
        mut line: MutexGuard<'a, Line>,
        ticket: Ticket,
        slot: &Arc<Slot>,
        mut now: Moment,
        by: Moment,
    ) -> Outcome {
        loop {
            if let Some(outcome) = slot.take() {
                self.leave(line, ticket);
                return outcome;
            }
            if now >= by
                && let Some(left) = line.abandon(ticket)
            {
                self.leave(line, ticket);
                return Err(self.too_late(left));
            }
            if line.reader.is_none() {
                line.reader = Some(ticket);
            }
            let reads = line.reader == Some(ticket);
            if line.wants_writer() && (reads || line.asleep) {
                line = self.write(line);
                if line.wants_writer() {
                    line = self.wait_for_peer(line, ticket, by);
                    now = self.clock.now();
                    continue;
                }
                if slot.has_answer() {
                    continue;
                }
            }
            if reads && line.reader == Some(ticket) {
                line.asleep = true;
                let until = self.patience(&line).min(by);
                drop(line);
                line = match self.read(until, slot) {
                    Ok(outcome) => return outcome,
                    Err(line) => line,
                };
            } else {
                drop(line);
                self.clock.wait(&slot.signal, by);
                // Whoever answers us does so while we have no role, unless the peer does not take what we write.
                if !self.stalled.load(Ordering::Acquire)
                    && let Some(outcome) = slot.take()
                {
                    return outcome;
                }
                line = self.line.lock();
            }
            now = self.clock.now();
        }
    }

    /// Until when the oldest request may go unanswered before the connection is given up.
    fn patience(&self, line: &Line) -> Moment {
        line.oldest().map_or(Moment::NEVER, |oldest| oldest + self.grace)
    }

    /// Somebody whose place is no longer in the line, or has no owner any more, goes: what it had to do others must do.
    fn leave(&self, mut line: MutexGuard<'_, Line>, ticket: Ticket) {
        let mut after = Aftermath::default();
        if line.reader == Some(ticket) {
            line.hand_on_reading(&mut after);
        }
        if line.wants_writer() && (line.reader.is_none() || line.asleep) {
            line.wake_a_writer(&mut after);
        }
        drop(self.conclude(line, after));
    }

    /// Writes what there is, also what comes meanwhile, as far as the peer takes it.
    fn write<'a>(&'a self, mut line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        line.writing = true;
        for _ in 0..Self::FAVOURS {
            let mut outlet = self.outlet.lock();
            let empty = std::mem::take(&mut outlet.spare);
            let bytes = line.take_unsent(empty);
            drop(line);
            let outcome = self.transport.write(&mut outlet, &bytes);
            line = self.line.lock();
            let sent = outcome.as_ref().map_or(0, |written| written.taken);
            outlet.spare = line.put_back(bytes, sent);
            drop(outlet);
            let written = match outcome {
                Ok(written) => written,
                Err(error) => {
                    line.writing = false;
                    return self.kill(line, &self.server.io_error("take a request", error));
                }
            };
            line.backlog = written.backlog;
            self.stalled.store(written.stalled, Ordering::Release);
            line.writing = false;
            if written.stalled || !line.wants_writer() {
                return line;
            }
            line.writing = true;
        }
        line.writing = false;
        line
    }

    /// The peer takes no more for the moment: waits a little for that, and for answers, if we are the one who reads.
    fn wait_for_peer<'a>(
        &'a self,
        mut line: MutexGuard<'a, Line>,
        ticket: Ticket,
        by: Moment,
    ) -> MutexGuard<'a, Line> {
        let reads = line.reader == Some(ticket);
        line.writing = true;
        let patience = self.patience(&line);
        drop(line);
        let now = self.clock.now();
        let slice = by.min(patience).since(now).min(Self::STALL);
        let ready = self.transport.wait(reads, slice);
        let mut line = self.line.lock();
        line.writing = false;
        match ready {
            Err(error) => self.kill(line, &self.server.io_error("take a request", error)),
            Ok(true) => {
                drop(line);
                self.read_what_is_there()
            }
            Ok(_) if reads && self.clock.now() >= patience => self.give_up(line),
            Ok(_) => line,
        }
    }

    /// The oldest request is overdue for too long.
    fn give_up<'a>(&'a self, line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        self.kill(line, &self.server.io_error("answer", ErrorKind::TimedOut.into()))
    }

    fn kill<'a>(&'a self, mut line: MutexGuard<'a, Line>, error: &Error) -> MutexGuard<'a, Line> {
        let mut after = Aftermath::default();
        self.end(&mut line, error, &mut after);
        self.conclude(line, after)
    }

    fn end(&self, line: &mut Line, error: &Error, after: &mut Aftermath) {
        line.die(error, after);
        // Whoever sleeps in the socket wakes up and sees it.
        self.transport.shut();
    }

    /// Tells those who are concerned. Not under the lock of the line: who is woken would run into it, and what errands
    /// do is not ours.
    fn conclude<'a>(
        &'a self,
        line: MutexGuard<'a, Line>,
        after: Aftermath,
    ) -> MutexGuard<'a, Line> {
        if after.wake.is_empty() && after.errands.is_empty() {
            return line;
        }
        drop(line);
        after.wake.iter().for_each(|slot| slot.signal.raise());
        for (errand, by, outcome) in after.errands {
            self.tell(errand, by, outcome);
        }
        self.line.lock()
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
    pub(in crate::link) fn is_usable(&self, now: Moment, deaths: u64) -> bool {
        let mut line = self.line.lock();
        if self.serial.is_over() {
            drop(self.kill(line, &self.server.superseded()));
            return false;
        }
        // All have given up: what has come since then nobody has read yet. Errands have the collector.
        if line.has_only_abandoned() && line.reader.is_none() && !line.writing {
            line = self.look(line);
        }
        if line.is_dead() || line.is_mute(now, self.grace) || self.patience(&line) <= now {
            return false;
        }
        if line.is_empty() && line.reader.is_none() && !line.writing {
            let is_stale = now.since(line.last_heard()) > Link::FRESH || line.deaths_seen != deaths;
            if is_stale && !self.transport.is_quiet() {
                let error = self.server.io_error("answer", ErrorKind::UnexpectedEof.into());
                drop(self.kill(line, &error));
                return false;
            }
            line.deaths_seen = deaths;
        }
        true
    }

    /// Ends the connection, and tells everybody on it why.
    pub(in crate::link) fn end_for(&self, why: &Error) {
        drop(self.kill(self.line.lock(), why));
    }

    /// Ends the connection: what came in on it is no answer to what was asked.
    pub(in crate::link) fn condemn(&self, why: &str) {
        self.end_for(&self.server.garbage(why));
    }

    /// Whether it can never be used again.
    fn is_dead(&self) -> bool {
        self.line.lock().is_dead()
    }
}

impl Drop for Duplex {
    /// Errands that are still under way are told that nobody will know.
    fn drop(&mut self) {
        let error = self.server.io_error("answer", ErrorKind::NotConnected.into());
        drop(self.kill(self.line.lock(), &error));
    }
}
