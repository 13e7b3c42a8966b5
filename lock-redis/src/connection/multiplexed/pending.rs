//! [`PendingRequests`]: who waits on a connection, in the order of their requests, and the bytes that have not left yet.
//!
//! Pure bookkeeping: it does no I/O and wakes nobody. Answers have no names; the oldest request that has none owns the
//! next one that comes. So a request stays in the pending until its answer has come, also when nobody wants it any more.

use crate::connection::{CallError, Server};
use crate::reply::Reply;
use lock_core::backend::Failure;
use lock_core::{Error, Moment, Signal};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What becomes of one request.
pub(super) type CallResult = Result<Reply, CallError>;

/// Where a thread waits for its answer.
#[derive(Default)]
pub(super) struct ReplySlot {
    pub(super) signal: Arc<Signal>,
    /// WriteProgress by whoever reads or ends the connection, under the lock of the pending, as long as this slot has its request
    /// there; taken by the thread that waits.
    answer: Mutex<Option<CallResult>>,
}

impl ReplySlot {
    pub(super) fn take(&self) -> Option<CallResult> {
        self.answer.lock().take()
    }

    pub(super) fn has_answer(&self) -> bool {
        self.answer.lock().is_some()
    }
}

/// A request whose answer nobody waits for.
pub(crate) struct CallbackRequest {
    /// The request, if it was sent with the hash of its script, and the script's text: sent instead if the server does not
    /// know the hash. Empty if the text was sent.
    pub(crate) by_hash: Vec<u8>,
    pub(crate) text: &'static str,
    /// Told what came of it. Runs on whichever thread reads; so it must be short, not wait, and not use the link.
    pub(crate) done: Box<dyn FnOnce(Result<Reply, Failure>) -> ReplyCheck + Send>,
}

/// What an callback says of the answer it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyCheck {
    Expected,
    /// It is no answer to what was asked: questions and answers may be out of step.
    Unexpected,
}

/// Who gets an answer.
enum ReplyOwner {
    Waiter(Arc<ReplySlot>),
    Callback(CallbackRequest),
    /// It gave up: its answer is dropped.
    Abandoned,
}

/// One request that has no answer yet.
struct PendingRequest {
    id: RequestId,
    /// Its bytes on the stream, counted from the first byte of the connection.
    start: u64,
    end: u64,
    by: Moment,
    owner: ReplyOwner,
}

/// A request's number on its connection. They grow, so requests stand in the order of their last_id.
pub(super) type RequestId = u64;

/// What is to be done after the pending was changed, and its lock is free again.
#[derive(Default)]
pub(super) struct DeferredWakeups {
    pub(super) wake: Vec<Arc<ReplySlot>>,
    /// What came of them, and until when they had time.
    pub(super) callbacks: Vec<(CallbackRequest, Moment, CallResult)>,
}

/// The pending. Everything in it is written and read under one lock.
pub(super) struct PendingRequests {
    /// Bytes that no writer has taken.
    unsent: Vec<u8>,
    /// How many bytes were ever let in, without those that were taken back.
    end: u64,
    requests: VecDeque<PendingRequest>,
    last_id: RequestId,
    callbacks: usize,
    /// Who reads for everybody. While anybody waits there is one: it is in the pending, and awake or woken or asleep in
    /// the socket. Whoever leaves hands it on under the lock of the pending.
    pub(super) reader: Option<RequestId>,
    /// Whether the reader sleeps in the socket. While it does not, it will look for unsent bytes before it does.
    pub(super) asleep: bool,
    /// Whether somebody writes at the moment.
    pub(super) writing: bool,
    /// Whether bytes that count as gone wait outside of the pending, because the peer took no more.
    pub(super) backlog: bool,
    failure: Option<Error>,
    /// When an answer last came, and how many requests there had been by then.
    last_heard: Moment,
    last_id_heard: RequestId,
    /// How many links to this server had died when this one was last looked at.
    pub(super) failures_seen: u64,
}

impl PendingRequests {
    /// What is to be written may wait while it is less than this part of what is under way. With 128 threads, a quarter or an
    /// eighth gave 0.93 of what the server can do at most, a half the same or a little less, the whole 0.86, and waiting for
    /// the reader in any case 0.83. With 8 it does not matter.
    const WRITE_SHARE: u64 = 4;

    pub(super) fn new(now: Moment, failures: u64) -> Self {
        Self {
            unsent: Vec::new(),
            end: 0,
            requests: VecDeque::new(),
            last_id: 0,
            callbacks: 0,
            reader: None,
            asleep: false,
            writing: false,
            backlog: false,
            failure: None,
            last_heard: now,
            last_id_heard: 0,
            failures_seen: failures,
        }
    }

    /// Puts a request at the end. An error if the connection is dead.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        by: Moment,
        slot: &Arc<ReplySlot>,
    ) -> Result<RequestId, CallError> {
        self.must_live()?;
        Ok(self.request(bytes, by, ReplyOwner::Waiter(Arc::clone(slot))))
    }

    /// The same for a request that nobody waits for.
    pub(super) fn push_callback(
        &mut self,
        bytes: &[u8],
        by: Moment,
        callback: CallbackRequest,
    ) -> Result<(), (CallbackRequest, CallError)> {
        if let Err(error) = self.must_live() {
            return Err((callback, error));
        }
        self.callbacks += 1;
        self.request(bytes, by, ReplyOwner::Callback(callback));
        Ok(())
    }

    fn must_live(&self) -> Result<(), CallError> {
        self.failure.as_ref().map_or(Ok(()), |error| Err(CallError::NotSent(error.clone())))
    }

    fn request(&mut self, bytes: &[u8], by: Moment, owner: ReplyOwner) -> RequestId {
        self.unsent.extend_from_slice(bytes);
        let start = self.end;
        self.end += bytes.len() as u64;
        self.last_id += 1;
        let id = self.last_id;
        self.requests.push_back(PendingRequest { id, start, end: self.end, by, owner });
        id
    }

    /// How many bytes have left, or may have.
    fn left(&self) -> u64 {
        self.end - self.unsent.len() as u64
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// How many requests have left whole, or may have: so many answers may come.
    pub(super) fn awaited(&self) -> usize {
        let left = self.left();
        self.requests.partition_point(|request| request.end <= left)
    }

    /// Whether the peer has so much to do that what waits here may wait a little longer, to leave along with more.
    ///
    /// That is, as in Nagle's algorithm, while there are answers to come - but not until the last of them: the
    /// server would run dry, and then it would be its turn while we wait, and ours while it waits. So it gets more as
    /// soon as what there is for it is a share of what it has.
    pub(super) fn is_peer_busy(&self) -> bool {
        let under_way =
            self.requests.front().map_or(0, |request| self.left().saturating_sub(request.start));
        (self.unsent.len() as u64) < under_way / Self::WRITE_SHARE
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether answers are to come, but nobody wants any of them any more.
    pub(super) fn has_only_abandoned(&self) -> bool {
        !self.is_empty()
            && self.requests.iter().all(|request| matches!(request.owner, ReplyOwner::Abandoned))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn has_callbacks(&self) -> bool {
        self.callbacks > 0
    }

    /// Whether there is something to be written and nobody who does it.
    pub(super) fn wants_writer(&self) -> bool {
        !self.writing && (self.backlog || !self.unsent.is_empty())
    }

    /// The deadline of the oldest request without an answer.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.requests.front().map(|request| request.by)
    }

    /// Whether the oldest request is late, and no answer at all has come since it was made, or for as long as `grace`:
    /// among many there are always some that were made just before the last answer came.
    pub(super) fn is_mute(&self, now: Moment, grace: Duration) -> bool {
        self.requests.front().is_some_and(|request| {
            let is_silent = || now.since(self.last_heard) >= grace;
            request.by <= now && (request.id > self.last_id_heard || is_silent())
        })
    }

    /// A whole answer has come.
    pub(super) fn heard(&mut self, now: Moment) {
        self.last_heard = now;
        self.last_id_heard = self.last_id;
    }

    pub(super) fn last_heard(&self) -> Moment {
        self.last_heard
    }

    /// Takes what is to be written. From here on it counts as gone.
    pub(super) fn take_unsent(&mut self, empty: Vec<u8>) -> Vec<u8> {
        debug_assert!(empty.is_empty(), "it would be sent again");
        std::mem::replace(&mut self.unsent, empty)
    }

    /// Gives back the buffer of which the first `sent` bytes have left.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>, sent: usize) -> Vec<u8> {
        if sent == bytes.len() {
            bytes.clear();
            return bytes;
        }
        bytes.drain(..sent);
        bytes.append(&mut self.unsent);
        std::mem::replace(&mut self.unsent, bytes)
    }

    /// An answer has come. An error if nobody can have asked for it.
    /// Whoever reads knows its own without being woken.
    pub(super) fn answer(
        &mut self,
        reply: Reply,
        mine: Option<&Arc<ReplySlot>>,
        wakeups: &mut DeferredWakeups,
    ) -> Result<(), &'static str> {
        let left = self.left();
        if self.requests.front().is_none_or(|request| request.end > left) {
            return Err("there is more than was asked for");
        }
        let request = self.requests.pop_front().expect("it was looked at");
        match (request.owner, mine) {
            (ReplyOwner::Waiter(slot), Some(mine)) if Arc::ptr_eq(&slot, mine) => {
                *slot.answer.lock() = Some(Ok(reply));
            }
            (owner, _) => self.settle(owner, request.by, Ok(reply), wakeups),
        }
        Ok(())
    }

    fn settle(
        &mut self,
        owner: ReplyOwner,
        by: Moment,
        outcome: CallResult,
        wakeups: &mut DeferredWakeups,
    ) {
        match owner {
            ReplyOwner::Waiter(slot) => {
                *slot.answer.lock() = Some(outcome);
                wakeups.wake.push(slot);
            }
            ReplyOwner::Callback(callback) => {
                self.callbacks -= 1;
                wakeups.callbacks.push((callback, by, outcome));
            }
            ReplyOwner::Abandoned => {}
        }
    }

    /// Somebody does not wait any longer for its answer. `None`: it has it already. Otherwise, whether its request may
    /// have left; one that has not is taken out.
    pub(super) fn abandon(&mut self, id: RequestId) -> Option<MayHaveLeft> {
        let at = self.requests.binary_search_by_key(&id, |request| request.id).ok()?;
        Some(self.abandon_at(at).1)
    }

    fn abandon_at(&mut self, at: usize) -> (ReplyOwner, MayHaveLeft) {
        let left = self.left();
        let request = &mut self.requests[at];
        let owner = std::mem::replace(&mut request.owner, ReplyOwner::Abandoned);
        if request.start < left {
            return (owner, MayHaveLeft(true));
        }
        let (start, length) = (request.start, request.end - request.start);
        self.requests.remove(at);
        let from = usize::try_from(start - left).expect("it is in a buffer");
        let count = usize::try_from(length).expect("it is in a buffer");
        self.unsent.drain(from..from + count);
        self.end -= length;
        for later in self.requests.range_mut(at..) {
            later.start -= length;
            later.end -= length;
        }
        (owner, MayHaveLeft(false))
    }

    /// Gives up the callbacks whose deadline has come.
    pub(super) fn expire_callbacks(
        &mut self,
        now: Moment,
        server: &Server,
        wakeups: &mut DeferredWakeups,
    ) {
        let mut at = 0;
        while at < self.requests.len() {
            let request = &self.requests[at];
            if request.by > now || !matches!(request.owner, ReplyOwner::Callback(_)) {
                at += 1;
                continue;
            }
            let by = request.by;
            let (owner, MayHaveLeft(left)) = self.abandon_at(at);
            let error = server.io_error("answer", io::ErrorKind::TimedOut.into());
            let error = if left { CallError::Unknown(error) } else { CallError::NotSent(error) };
            if let ReplyOwner::Callback(callback) = owner {
                self.callbacks -= 1;
                wakeups.callbacks.push((callback, by, Err(error)));
            }
            at += usize::from(left);
        }
    }

    /// Makes the first who waits the reader.
    pub(super) fn hand_over_reading(&mut self, wakeups: &mut DeferredWakeups) {
        self.asleep = false;
        let mut waiters = self.requests.iter();
        let heir = waiters.find_map(|request| match &request.owner {
            ReplyOwner::Waiter(slot) => Some((request.id, slot)),
            _ => None,
        });
        self.reader = heir.map(|(id, _)| id);
        wakeups.wake.extend(heir.map(|(_, slot)| Arc::clone(slot)));
    }

    /// Has somebody woken who waits and does not read, so that it writes. Where nobody is, the reader does it when it
    /// looks up.
    pub(super) fn wake_a_writer(&self, wakeups: &mut DeferredWakeups) {
        let mut waiters = self.requests.iter().filter(|request| Some(request.id) != self.reader);
        wakeups.wake.extend(waiters.find_map(|request| match &request.owner {
            ReplyOwner::Waiter(slot) => Some(Arc::clone(slot)),
            _ => None,
        }));
    }

    /// The connection is dead: everybody is told, each what it means for its own request. Only the first cause counts.
    pub(super) fn fail_all(&mut self, error: &Error, wakeups: &mut DeferredWakeups) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        let left = self.left();
        for request in std::mem::take(&mut self.requests) {
            let outcome = if request.start < left {
                CallError::Unknown(error.clone())
            } else {
                CallError::NotSent(error.clone())
            };
            self.settle(request.owner, request.by, Err(outcome), wakeups);
        }
        self.unsent.clear();
        self.backlog = false;
        self.reader = None;
        self.asleep = false;
    }
}

/// Whether bytes of a request may have reached the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MayHaveLeft(pub(super) bool);
