//! [`PendingRequests`]: the requests of a connection that have no reply yet, and the unsent bytes.
//!
//! Pure state, without I/O and wake-ups. A reply does not name its request: it belongs to the
//! oldest request that was sent. So a request that was sent stays pending until its reply arrives,
//! even if its caller has given up. Requests of one write may be [joined](super::joined) into one,
//! whose reply has a part for each.

mod joining;

use super::joined::{JoinKind, Joiner};
use crate::connection::{CallError, Reply, Server, with_text};
use crate::lua::join::Join;
use lock_core::backend::Failure;
use lock_core::{Error, Moment, Signal};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem, slice};

/// The outcome of one request.
pub(super) type CallResult = Result<Reply, CallError>;

/// The place where a thread waits for its reply.
#[derive(Default)]
pub(super) struct ReplySlot {
    /// The signal of the thread, shared by all requests that it waits for.
    pub(super) signal: Arc<Signal>,
    /// Set by the thread that reads or closes the connection, under the lock of the pending
    /// requests, while the request is pending. Removed by the thread that waits.
    reply: Mutex<Option<CallResult>>,
}

impl ReplySlot {
    pub(super) fn new(signal: &Arc<Signal>) -> Self {
        Self {
            signal: Arc::clone(signal),
            reply: Mutex::default(),
        }
    }

    pub(super) fn take(&self) -> Option<CallResult> {
        self.reply.lock().take()
    }

    pub(super) fn has_reply(&self) -> bool {
        self.reply.lock().is_some()
    }
}

/// A request that no thread waits for.
pub(crate) struct CallbackRequest {
    /// The request with the hash of its script; empty if it was sent with the text, or runs no
    /// script. If the server does not know the hash, the request is sent again with `text`, the
    /// script's text.
    pub(crate) by_hash: Vec<u8>,
    pub(crate) text: &'static str,
    /// Called with the outcome by the thread that reads the reply or fails the request. Must be
    /// short, must not wait, and must not use the connection.
    pub(crate) done: OnReply,
}

/// The callback for the reply to a request that no thread waits for.
pub(crate) type OnReply = Box<dyn FnOnce(Result<Reply, Failure>) -> ReplyCheck + Send>;

/// The reason for closing a connection after a reply that the script cannot give.
pub(super) const UNEXPECTED: &str = "not one that our script gives";

/// A callback's check of the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyCheck {
    Expected,
    /// The reply does not belong to this request: requests and replies may be out of step.
    Unexpected,
}

/// The receiver of a reply.
enum ReplyOwner {
    Caller(Arc<ReplySlot>),
    Callback(CallbackRequest),
    /// The caller has given up: the reply is dropped.
    Abandoned,
}

/// The request of one caller.
pub(super) struct CallerRequest {
    id: RequestId,
    since: Moment,
    by: Moment,
    owner: ReplyOwner,
    joining: Joining,
    /// True if a joined script with this request failed, but may have carried it out: then the
    /// outcome is unknown until the request has a reply.
    may_have_run: bool,
}

/// The permission to join a request with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Joining {
    Free,
    /// The request was joined before, and is sent again alone. Or it is one of several requests of
    /// a thread, which waits for them in order: if it were joined and sent again, it would come
    /// after a later one. The role of the reader could then be given to the later request, for
    /// which the thread does not wait yet, and no thread would read.
    Never,
}

impl CallerRequest {
    /// Returns the slot of the thread that waits for the reply.
    fn caller(&self) -> Option<&Arc<ReplySlot>> {
        match &self.owner {
            ReplyOwner::Caller(slot) => Some(slot),
            ReplyOwner::Callback(_) | ReplyOwner::Abandoned => None,
        }
    }
}

/// A request without a reply.
struct PendingRequest {
    /// The position of its bytes on the stream, counted from the first byte of the connection.
    start: u64,
    end: u64,
    content: Content,
}

enum Content {
    One(CallerRequest),
    Joined(Box<JoinedRequests>),
}

/// Requests that are sent as one.
struct JoinedRequests {
    kind: JoinKind,
    requests: Vec<CallerRequest>,
    /// The bytes of the requests as they would be sent alone, in order. `ends` has the end of each.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl PendingRequest {
    /// Returns the requests of the callers: the only one, or the joined ones.
    fn each(&self) -> &[CallerRequest] {
        match &self.content {
            Content::One(request) => slice::from_ref(request),
            Content::Joined(joined) => &joined.requests,
        }
    }

    fn each_mut(&mut self) -> &mut [CallerRequest] {
        match &mut self.content {
            Content::One(request) => slice::from_mut(request),
            Content::Joined(joined) => &mut joined.requests,
        }
    }

    fn into_each(self) -> Vec<CallerRequest> {
        match self.content {
            Content::One(request) => vec![request],
            Content::Joined(joined) => joined.requests,
        }
    }

    /// Returns the request with the earliest deadline.
    fn due_first(&self) -> &CallerRequest {
        self.each()
            .iter()
            .min_by_key(|request| request.by)
            .expect("there is one")
    }

    /// Returns the position of its bytes in a buffer that begins with byte `start` of the stream.
    fn range(&self, start: u64) -> Range<usize> {
        let place = |at: u64| usize::try_from(at - start).expect("it is in a buffer");
        place(self.start)..place(self.end)
    }
}

impl JoinedRequests {
    /// Returns `true` if `reply` can be the reply to these requests.
    fn expects(&self, reply: &Reply) -> bool {
        match reply {
            Reply::Array(answers) => answers.len() == self.requests.len(),
            reply => matches!(reply, Reply::Error(_)),
        }
    }
}

/// The number of a request on its connection.
pub(in crate::connection) type RequestId = u64;

/// The actions to be carried out after the lock of the pending requests is released.
#[derive(Default)]
pub(super) struct DeferredWakeups {
    pub(super) wake: Vec<Arc<ReplySlot>>,
    pub(super) callbacks: Vec<(CallbackRequest, CallResult)>,
}

/// The requests without a reply. One lock guards all fields.
pub(super) struct PendingRequests {
    /// Bytes that no writer has fetched.
    unsent: Vec<u8>,
    joiner: Joiner,
    /// An empty buffer, exchanged for `unsent` while requests are joined.
    spare: Vec<u8>,
    /// The end, on the stream, of the last byte that was added. Moves back when requests are
    /// removed or joined.
    end: u64,
    requests: VecDeque<PendingRequest>,
    last_id: RequestId,
    callbacks: usize,
    /// The request of the thread that reads for all. While a thread waits, there is a reader, which
    /// is awake, being woken, or asleep in the socket.
    pub(super) reader: Option<RequestId>,
    /// True while the reader sleeps in the socket. The reader checks for unsent bytes before it
    /// sleeps.
    pub(super) asleep: bool,
    /// True while a thread writes.
    pub(super) writing: bool,
    /// True if bytes that count as sent are still in the write buffer, because the peer took no
    /// more.
    pub(super) backlog: bool,
    failure: Option<Error>,
    /// The time of the last reply. `last_id_received` is the number of the last request at that
    /// time.
    last_received: Moment,
    last_id_received: RequestId,
    /// The time that replies have taken recently. A single slow reply is forgotten after some
    /// others.
    usual: Duration,
    /// The number of failed connections to this server at the last check of this connection.
    pub(super) failures_seen: u64,
}

impl PendingRequests {
    /// The divisor of the bytes under way: unsent bytes may wait while they are less than half of
    /// these bytes. Measured against a half: with the whole, 8 threads got 0.7 to 0.95 of the
    /// throughput; with a quarter, 8 threads got about the same, and 128 threads without tokens
    /// 0.9. Leaving all writes to the reader was slower.
    const WRITE_SHARE: u64 = 2;

    /// The least time that the oldest request must have waited before new requests go to a new
    /// connection, because a lost packet is sent again after 200 ms. Twice the recent time of a
    /// reply is used if that is longer, but never more than `command_timeout`.
    const LEAST_SILENCE: Duration = Duration::from_millis(250);

    /// Creates the state; `usual` is the expected time of a reply until the first has arrived.
    pub(super) fn new(now: Moment, usual: Duration, failures: u64, joins: &'static [Join]) -> Self {
        Self {
            usual,
            unsent: Vec::new(),
            joiner: Joiner::new(joins),
            spare: Vec::new(),
            end: 0,
            requests: VecDeque::new(),
            last_id: 0,
            callbacks: 0,
            reader: None,
            asleep: false,
            writing: false,
            backlog: false,
            failure: None,
            last_received: now,
            last_id_received: 0,
            failures_seen: failures,
        }
    }

    /// Adds a request. Fails if the connection is closed.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        (since, by): (Moment, Moment),
        slot: &Arc<ReplySlot>,
        joining: Joining,
    ) -> Result<RequestId, CallError> {
        self.check_open()?;
        Ok(self.add(
            bytes,
            (since, by),
            ReplyOwner::Caller(Arc::clone(slot)),
            joining,
        ))
    }

    /// Adds a request that no thread waits for.
    pub(super) fn push_callback(
        &mut self,
        bytes: &[u8],
        (since, by): (Moment, Moment),
        callback: CallbackRequest,
    ) -> Result<(), (CallbackRequest, CallError)> {
        if let Err(error) = self.check_open() {
            return Err((callback, error));
        }
        self.callbacks += 1;
        self.add(
            bytes,
            (since, by),
            ReplyOwner::Callback(callback),
            Joining::Free,
        );
        Ok(())
    }

    fn check_open(&self) -> Result<(), CallError> {
        self.failure
            .as_ref()
            .map_or(Ok(()), |error| Err(CallError::NotSent(error.clone())))
    }

    fn add(
        &mut self,
        bytes: &[u8],
        (since, by): (Moment, Moment),
        owner: ReplyOwner,
        joining: Joining,
    ) -> RequestId {
        self.last_id += 1;
        let id = self.last_id;
        self.enqueue(
            bytes,
            CallerRequest {
                id,
                since,
                by,
                owner,
                joining,
                may_have_run: false,
            },
        );
        id
    }

    fn enqueue(&mut self, bytes: &[u8], request: CallerRequest) {
        self.enqueue_content(Content::One(request), |unsent| {
            unsent.extend_from_slice(bytes);
        });
    }

    /// Adds a request after the unsent ones, with the bytes that `encode` appends.
    fn enqueue_content(&mut self, content: Content, encode: impl FnOnce(&mut Vec<u8>)) {
        let (start, before) = (self.end, self.unsent.len());
        encode(&mut self.unsent);
        self.end += (self.unsent.len() - before) as u64;
        self.requests.push_back(PendingRequest {
            start,
            end: self.end,
            content,
        });
    }

    /// Returns how many bytes were sent, or may have been.
    fn sent(&self) -> u64 {
        self.end - self.unsent.len() as u64
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns how many requests were sent whole, or may have been: so many replies may arrive.
    pub(super) fn awaited(&self) -> usize {
        let sent = self.sent();
        self.requests.partition_point(|request| request.end <= sent)
    }

    /// Returns `true` if unsent bytes may wait for more, as in Nagle's algorithm, because replies
    /// are due. They do not wait for the last reply: otherwise the server would run out of
    /// requests, and both sides would take turns at waiting.
    pub(super) fn is_peer_busy(&self) -> bool {
        let under_way = self
            .requests
            .front()
            .map_or(0, |request| self.sent().saturating_sub(request.start));
        (self.unsent.len() as u64) < under_way / Self::WRITE_SHARE
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns `true` if replies are due, and all their callers have given up.
    pub(super) fn has_only_abandoned(&self) -> bool {
        !self.is_empty()
            && self
                .each()
                .all(|request| matches!(request.owner, ReplyOwner::Abandoned))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn has_callbacks(&self) -> bool {
        self.callbacks > 0
    }

    /// Returns the number of the last pending callback request, among the requests up to `until`.
    pub(super) fn last_callback(&self, until: RequestId) -> Option<RequestId> {
        let of_callback = |request: &&CallerRequest| {
            request.id <= until && matches!(request.owner, ReplyOwner::Callback(_))
        };
        self.each()
            .filter(of_callback)
            .map(|request| request.id)
            .max()
    }

    /// Returns `true` if there are bytes to write and no thread writes.
    pub(super) fn wants_writer(&self) -> bool {
        !self.writing && (self.backlog || !self.unsent.is_empty())
    }

    /// Returns the deadline of the oldest request.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.requests.front().map(|request| request.due_first().by)
    }

    /// Returns `true` if the oldest request is late, and no reply has arrived since that request
    /// was made, or no reply for `grace`. The latter is needed because, among many requests, the
    /// oldest one may have been made just before the last reply.
    ///
    /// A request is late if its deadline has passed and it has waited twice as long as replies
    /// usually take (at least `LEAST_SILENCE`, at most `grace`): the deadline alone may be too
    /// short.
    pub(super) fn is_mute(&self, now: Moment, grace: Duration) -> bool {
        let usual = (self.usual * 2).max(Self::LEAST_SILENCE).min(grace);
        self.requests
            .front()
            .map(PendingRequest::due_first)
            .is_some_and(|request| {
                let is_late = request.by <= now && now.since(request.since) >= usual;
                let is_silent = || now.since(self.last_received) >= grace;
                is_late && (request.id > self.last_id_received || is_silent())
            })
    }

    /// Records that a reply has arrived.
    pub(super) fn received(&mut self, now: Moment) {
        self.last_received = now;
        self.last_id_received = self.last_id;
        if let Some(request) = self.requests.front() {
            self.usual = now.since(request.due_first().since).max(self.usual / 2);
        }
    }

    pub(super) fn last_received(&self) -> Moment {
        self.last_received
    }

    /// Returns the requests of the callers, joined or not.
    fn each(&self) -> impl Iterator<Item = &CallerRequest> {
        self.requests.iter().flat_map(PendingRequest::each)
    }

    /// Joins requests where possible, then removes and returns the unsent bytes, in exchange for an
    /// empty buffer. The bytes count as sent from now on.
    pub(super) fn take_unsent(&mut self, empty: Vec<u8>) -> Vec<u8> {
        debug_assert!(empty.is_empty(), "it would be sent again");
        if self.may_join() {
            self.join_unsent();
        }
        mem::replace(&mut self.unsent, empty)
    }

    /// Puts bytes back in front of the unsent ones, except the first `sent`. Returns an empty
    /// buffer.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>, sent: usize) -> Vec<u8> {
        if sent == bytes.len() {
            bytes.clear();
            return bytes;
        }
        bytes.drain(..sent);
        bytes.append(&mut self.unsent);
        mem::replace(&mut self.unsent, bytes)
    }

    /// Assigns a reply to its request; fails if no request waits for a reply, or if the reply
    /// cannot be the reply to the joined requests. The thread that reads is not woken for its own
    /// reply.
    pub(super) fn assign(
        &mut self,
        reply: Reply,
        mine: Option<&Arc<ReplySlot>>,
        wakeups: &mut DeferredWakeups,
    ) -> Result<(), &'static str> {
        let sent = self.sent();
        let Some(request) = self.requests.front().filter(|request| request.end <= sent) else {
            return Err("there is more than was asked for");
        };
        if matches!(&request.content, Content::Joined(joined) if !joined.expects(&reply)) {
            return Err(UNEXPECTED);
        }
        match self
            .requests
            .pop_front()
            .expect("the front was looked at")
            .content
        {
            Content::One(request) => {
                let outcome = outcome_of(&request, reply);
                self.deliver(request, outcome, mine, wakeups);
            }
            Content::Joined(joined) => self.distribute(*joined, reply, mine, wakeups),
        }
        Ok(())
    }

    /// Passes the outcome of a request to its owner, as [`settle`](Self::settle) does, but does not
    /// wake the thread that reads for its own reply.
    fn deliver(
        &mut self,
        request: CallerRequest,
        outcome: CallResult,
        mine: Option<&Arc<ReplySlot>>,
        wakeups: &mut DeferredWakeups,
    ) {
        match (&request.owner, mine) {
            (ReplyOwner::Caller(slot), Some(mine)) if Arc::ptr_eq(slot, mine) => {
                *slot.reply.lock() = Some(outcome);
            }
            _ => self.settle(request, outcome, wakeups),
        }
    }

    /// Passes the outcome of a request to its owner. If the server did not know the script of a
    /// callback, the callback stays pending instead, until its deadline: its request is added
    /// again, with the text.
    fn settle(
        &mut self,
        mut request: CallerRequest,
        outcome: CallResult,
        wakeups: &mut DeferredWakeups,
    ) {
        match request.owner {
            ReplyOwner::Caller(slot) => {
                *slot.reply.lock() = Some(outcome);
                wakeups.wake.push(slot);
            }
            ReplyOwner::Callback(mut callback) => {
                let is_unknown = outcome.as_ref().is_ok_and(Reply::is_noscript);
                let is_late = request.by <= self.last_received;
                if is_unknown && !is_late && !callback.by_hash.is_empty() {
                    let again = with_text(&mem::take(&mut callback.by_hash), callback.text);
                    request.owner = ReplyOwner::Callback(callback);
                    self.enqueue(&again, request);
                } else {
                    self.callbacks -= 1;
                    wakeups.callbacks.push((callback, outcome));
                }
            }
            ReplyOwner::Abandoned => {}
        }
    }

    /// Gives up the request of a caller. Returns `None` if it has its reply; otherwise, whether it
    /// may have been carried out or may yet be: its bytes may have been sent, it is joined, or an
    /// earlier joined script may have carried it out. Removes the request if no byte of it was sent
    /// and it is not joined.
    pub(super) fn abandon(&mut self, id: RequestId) -> Option<MayHaveLeft> {
        let is_it = |request: &CallerRequest| request.id == id;
        let member = |request: &PendingRequest| request.each().iter().position(is_it);
        let mut requests = self.requests.iter().enumerate();
        let (index, member) =
            requests.find_map(|(index, request)| Some((index, member(request)?)))?;
        Some(self.abandon_member(index, member).1)
    }

    /// Abandons the request of one caller in the pending request at `index`.
    fn abandon_member(&mut self, index: usize, member: usize) -> (ReplyOwner, MayHaveLeft) {
        let sent = self.sent();
        let pending = &mut self.requests[index];
        let request = &mut pending.each_mut()[member];
        let owner = mem::replace(&mut request.owner, ReplyOwner::Abandoned);
        let may_have_run = request.may_have_run;
        if pending.start < sent || matches!(pending.content, Content::Joined(_)) {
            return (owner, MayHaveLeft(true));
        }
        let (range, length) = (pending.range(sent), pending.end - pending.start);
        self.requests.remove(index);
        self.unsent.drain(range);
        self.end -= length;
        for later in self.requests.range_mut(index..) {
            later.start -= length;
            later.end -= length;
        }
        (owner, MayHaveLeft(may_have_run))
    }

    /// Fails the callbacks whose deadline has passed.
    pub(super) fn expire_callbacks(
        &mut self,
        now: Moment,
        server: &Server,
        wakeups: &mut DeferredWakeups,
    ) {
        let is_late = |request: &CallerRequest| {
            request.by <= now && matches!(request.owner, ReplyOwner::Callback(_))
        };
        let mut index = 0;
        while index < self.requests.len() {
            let Some(member) = self.requests[index].each().iter().position(is_late) else {
                index += 1;
                continue;
            };
            let (owner, may_have_left) = self.abandon_member(index, member);
            if let ReplyOwner::Callback(callback) = owner {
                self.callbacks -= 1;
                wakeups
                    .callbacks
                    .push((callback, Err(may_have_left.timed_out(server))));
            }
        }
    }

    /// Makes the first waiting thread the reader.
    pub(super) fn hand_over_reading(&mut self, wakeups: &mut DeferredWakeups) {
        self.asleep = false;
        let next = self
            .each()
            .find_map(|request| Some((request.id, request.caller()?)));
        let next = next.map(|(id, slot)| (id, Arc::clone(slot)));
        self.reader = next.as_ref().map(|(id, _)| *id);
        wakeups.wake.extend(next.map(|(_, slot)| slot));
    }

    /// While the reader sleeps, wakes another waiting thread for bytes that no thread writes. If no
    /// other thread waits, the reader writes when it wakes.
    pub(super) fn wake_a_writer(&self, wakeups: &mut DeferredWakeups) {
        if !self.asleep || !self.wants_writer() {
            return;
        }
        let reader = self.each().find(|request| Some(request.id) == self.reader);
        let reader = reader
            .and_then(CallerRequest::caller)
            .map(|slot| &slot.signal);
        let is_reader =
            |slot: &Arc<ReplySlot>| reader.is_some_and(|it| Arc::ptr_eq(it, &slot.signal));
        let mut others = self
            .each()
            .filter_map(CallerRequest::caller)
            .filter(|slot| !is_reader(slot));
        wakeups.wake.extend(others.next().map(Arc::clone));
    }

    /// Fails all requests, each as unsent or with an unknown outcome. Only the first cause counts.
    pub(super) fn fail_all(&mut self, error: &Error, wakeups: &mut DeferredWakeups) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        let sent = self.sent();
        for request in mem::take(&mut self.requests) {
            let has_left = request.start < sent;
            for request in request.into_each() {
                let may_have_left = MayHaveLeft(has_left || request.may_have_run);
                self.settle(request, Err(may_have_left.failure(error.clone())), wakeups);
            }
        }
        self.unsent.clear();
        self.backlog = false;
        self.reader = None;
        self.asleep = false;
    }
}

/// Returns the outcome of a request with this reply. If the request was sent before and may have
/// been carried out, an error leaves the outcome unknown. Exceptions: after `NOSCRIPT` the request
/// is sent again, and `WRONGTYPE` means that the value under the key is not the lock.
fn outcome_of(request: &CallerRequest, reply: Reply) -> CallResult {
    match reply {
        Reply::Error(error)
            if request.may_have_run && !matches!(&*error.code, "NOSCRIPT" | "WRONGTYPE") =>
        {
            let message = "a request that was sent twice failed, and may have been carried out";
            Err(CallError::Unknown(
                Error::unavailable(message).with_source(error),
            ))
        }
        reply => Ok(reply),
    }
}

/// True if bytes of a request may have reached the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MayHaveLeft(pub(super) bool);

impl MayHaveLeft {
    /// Returns the failure of a request that will have no reply.
    fn failure(self, error: Error) -> CallError {
        match self {
            Self(true) => CallError::Unknown(error),
            Self(false) => CallError::NotSent(error),
        }
    }

    /// Returns the failure of a request whose deadline has passed.
    pub(super) fn timed_out(self, server: &Server) -> CallError {
        let what = if self.0 { "answer" } else { "take a request" };
        self.failure(server.io_error(what, io::ErrorKind::TimedOut.into()))
    }
}
