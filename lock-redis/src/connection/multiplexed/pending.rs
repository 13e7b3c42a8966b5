//! [`PendingRequests`]: the requests on a connection without a reply, and the bytes not yet sent.
//!
//! Pure state, without I/O and wake-ups. Replies carry no names: each is for the oldest request. So
//! a request stays pending until its reply arrives, even if its caller has given up.

use super::joined::{self, JoinedRequests, Joiner};
use crate::connection::{CallError, Reply, Server, with_text};
use crate::lua::join::Join;
use lock_core::backend::Failure;
use lock_core::{Error, Moment, Signal};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem, slice};

/// The outcome of one request.
pub(super) type CallResult = Result<Reply, CallError>;

/// Where a thread waits for its reply.
#[derive(Default)]
pub(super) struct ReplySlot {
    /// The thread's: one for all requests that it waits for.
    pub(super) signal: Arc<Signal>,
    /// Written by the thread that reads or closes the connection, under the lock of the pending
    /// requests, while its request is among them. Taken by the thread that waits.
    reply: Mutex<Option<CallResult>>,
}

impl ReplySlot {
    pub(super) fn new(signal: &Arc<Signal>) -> Self {
        Self { signal: Arc::clone(signal), reply: Mutex::default() }
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
    /// The request, if it was sent with the hash of its script, and the script's text: that is sent
    /// if the server does not know the hash. Empty if the text was sent.
    pub(crate) by_hash: Vec<u8>,
    pub(crate) text: &'static str,
    /// Called with the outcome, by the thread that reads: must be short, not wait, and not use the
    /// connection.
    pub(crate) done: Box<dyn FnOnce(Result<Reply, Failure>) -> ReplyCheck + Send>,
}

/// What a callback says of the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyCheck {
    Expected,
    /// It is none to this request: requests and replies may be out of step.
    Unexpected,
}

/// What a reply goes to.
enum ReplyOwner {
    Caller(Arc<ReplySlot>),
    Callback(CallbackRequest),
    /// The caller gave up: the reply is dropped.
    Abandoned,
    /// Several, each of which gets a part of it.
    Joined(Box<JoinedRequests>),
}

/// A request without a reply.
pub(super) struct PendingRequest {
    /// Its own, or that of the first of several that falls due.
    id: RequestId,
    /// Its bytes on the stream, counted from the first byte of the connection; or among those of
    /// the requests that it was joined with.
    start: u64,
    end: u64,
    by: Moment,
    owner: ReplyOwner,
    /// Whether it was sent before, joined with others, and may have been carried out.
    repeated: bool,
}

impl PendingRequest {
    /// Those that threads made: it, or those that were joined.
    fn each(&self) -> &[Self] {
        match &self.owner {
            ReplyOwner::Joined(joined) => &joined.members,
            _ => slice::from_ref(self),
        }
    }

    fn into_each(self) -> Vec<Self> {
        match self.owner {
            ReplyOwner::Joined(joined) => joined.members,
            _ => vec![self],
        }
    }

    /// Where a thread waits for the reply.
    fn caller(&self) -> Option<&Arc<ReplySlot>> {
        match &self.owner {
            ReplyOwner::Caller(slot) => Some(slot),
            _ => None,
        }
    }

    /// Its place among bytes that begin at `base`.
    fn range(&self, base: u64) -> std::ops::Range<usize> {
        let place = |at: u64| usize::try_from(at - base).expect("it is in a buffer");
        place(self.start)..place(self.end)
    }
}

/// A request's number on its connection.
pub(super) type RequestId = u64;

/// A request that can be joined with others of its kind.
struct Joinable<'a> {
    kind: usize,
    words: joined::Words<'a>,
    bytes: &'a [u8],
    request: PendingRequest,
}

/// What is to be done once the lock of the pending requests is free again.
#[derive(Default)]
pub(super) struct DeferredWakeups {
    pub(super) wake: Vec<Arc<ReplySlot>>,
    pub(super) callbacks: Vec<(CallbackRequest, CallResult)>,
}

/// The requests without a reply. All of it is under one lock.
pub(super) struct PendingRequests {
    /// Bytes that no writer has taken.
    unsent: Vec<u8>,
    /// Joins those of several requests. Its buffer is the empty one that is exchanged for them.
    joiner: Joiner,
    spare: Vec<u8>,
    /// How many bytes were ever added, without those that were taken back.
    end: u64,
    requests: VecDeque<PendingRequest>,
    last_id: RequestId,
    callbacks: usize,
    /// How many callbacks' requests were sent again.
    resent: u64,
    /// The thread that reads for all. While a thread waits there is one, and it is awake, being
    /// woken, or asleep in the socket.
    pub(super) reader: Option<RequestId>,
    /// Whether the reader sleeps in the socket. Before it does, it looks for unsent bytes.
    pub(super) asleep: bool,
    /// Whether a thread writes.
    pub(super) writing: bool,
    /// Whether bytes that count as sent are still in the write buffer, because the peer took no
    /// more.
    pub(super) backlog: bool,
    failure: Option<Error>,
    /// When a reply last came, and the last request by then.
    last_received: Moment,
    last_id_received: RequestId,
    /// How many connections to this server had failed when this one was last looked at.
    pub(super) failures_seen: u64,
}

impl PendingRequests {
    /// Unsent bytes may wait while they are less than this part of those under way. With 8 threads
    /// the whole gave 0.7 to 0.95 of what a half gives, and a quarter about the same; with 128
    /// threads without tokens a quarter gave 0.9. Leaving all writes to the reader was slower.
    const WRITE_SHARE: u64 = 2;

    pub(super) fn new(now: Moment, failures: u64, joins: &'static [Join]) -> Self {
        Self {
            unsent: Vec::new(),
            joiner: Joiner::new(joins),
            spare: Vec::new(),
            end: 0,
            requests: VecDeque::new(),
            last_id: 0,
            callbacks: 0,
            resent: 0,
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

    /// Adds a request. An error if the connection is closed.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        by: Moment,
        slot: &Arc<ReplySlot>,
    ) -> Result<RequestId, CallError> {
        self.check_open()?;
        Ok(self.add(bytes, by, ReplyOwner::Caller(Arc::clone(slot))))
    }

    /// Adds a request that no thread waits for.
    pub(super) fn push_callback(
        &mut self,
        bytes: &[u8],
        by: Moment,
        callback: CallbackRequest,
    ) -> Result<(), (CallbackRequest, CallError)> {
        if let Err(error) = self.check_open() {
            return Err((callback, error));
        }
        self.callbacks += 1;
        self.add(bytes, by, ReplyOwner::Callback(callback));
        Ok(())
    }

    fn check_open(&self) -> Result<(), CallError> {
        self.failure.as_ref().map_or(Ok(()), |error| Err(CallError::NotSent(error.clone())))
    }

    fn add(&mut self, bytes: &[u8], by: Moment, owner: ReplyOwner) -> RequestId {
        self.last_id += 1;
        let id = self.last_id;
        self.put(bytes, PendingRequest { id, start: 0, end: 0, by, owner, repeated: false });
        id
    }

    /// Puts a request behind those that are unsent, with these bytes.
    fn put(&mut self, bytes: &[u8], mut request: PendingRequest) {
        self.unsent.extend_from_slice(bytes);
        request.start = self.end;
        self.end += bytes.len() as u64;
        request.end = self.end;
        self.requests.push_back(request);
    }

    /// How many bytes have been sent, or may have been.
    fn sent(&self) -> u64 {
        self.end - self.unsent.len() as u64
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// How many requests were sent whole, or may have been: so many replies may come.
    pub(super) fn awaited(&self) -> usize {
        let sent = self.sent();
        self.requests.partition_point(|request| request.end <= sent)
    }

    /// Whether unsent bytes may wait for more, as in Nagle's algorithm, because replies are to
    /// come. Not until the last of them: the server would run dry, and both sides take turns at
    /// waiting.
    pub(super) fn is_peer_busy(&self) -> bool {
        let under_way =
            self.requests.front().map_or(0, |request| self.sent().saturating_sub(request.start));
        (self.unsent.len() as u64) < under_way / Self::WRITE_SHARE
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether replies are to come, and all their callers have given up.
    pub(super) fn has_only_abandoned(&self) -> bool {
        !self.is_empty()
            && self.each().all(|request| matches!(request.owner, ReplyOwner::Abandoned))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn has_callbacks(&self) -> bool {
        self.callbacks > 0
    }

    pub(super) fn resent(&self) -> u64 {
        self.resent
    }

    /// Whether there are bytes to write and no thread writes.
    pub(super) fn wants_writer(&self) -> bool {
        !self.writing && (self.backlog || !self.unsent.is_empty())
    }

    /// The deadline of the oldest request.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.requests.front().map(|request| request.by)
    }

    /// Whether the oldest request is late, and no reply at all has come since it was made, or for
    /// as long as `grace`: among many, some were always made just before the last reply.
    pub(super) fn is_mute(&self, now: Moment, grace: Duration) -> bool {
        self.requests.front().is_some_and(|request| {
            let is_silent = || now.since(self.last_received) >= grace;
            request.by <= now && (request.id > self.last_id_received || is_silent())
        })
    }

    /// A reply has come.
    pub(super) fn received(&mut self, now: Moment) {
        self.last_received = now;
        self.last_id_received = self.last_id;
    }

    pub(super) fn last_received(&self) -> Moment {
        self.last_received
    }

    /// The requests that threads made, whether they were joined or not.
    fn each(&self) -> impl Iterator<Item = &PendingRequest> {
        self.requests.iter().flat_map(PendingRequest::each)
    }

    /// Takes the unsent bytes, in exchange for a buffer. They count as sent from now on.
    pub(super) fn take_unsent(&mut self, empty: Vec<u8>) -> Vec<u8> {
        debug_assert!(empty.is_empty(), "it would be sent again");
        let several = self.requests.len().checked_sub(2).map(|at| &self.requests[at]);
        if several.is_some_and(|it| it.start >= self.sent())
            && self.joiner.is_on(self.last_received)
        {
            self.join_unsent();
        }
        mem::replace(&mut self.unsent, empty)
    }

    /// Joins what can be joined of the requests of which nothing is sent. No request overtakes one
    /// that cannot be joined.
    fn join_unsent(&mut self) {
        let sent = self.sent();
        let first = self.requests.partition_point(|request| request.start < sent);
        let old = mem::replace(&mut self.unsent, mem::take(&mut self.spare));
        let whole = self.requests.split_off(first);
        // The rest of one of which a part is sent.
        let rest = whole.front().map_or(0, |request| request.range(sent).start);
        self.unsent.extend_from_slice(&old[..rest]);
        self.end = sent + rest as u64;
        let mut run = Vec::new();
        for request in whole {
            let bytes = &old[request.range(sent)];
            let is_one = !request.repeated && !matches!(request.owner, ReplyOwner::Joined(_));
            match is_one.then(|| self.joiner.look(bytes)).flatten() {
                Some((kind, words)) => run.push(Joinable { kind, words, bytes, request }),
                None => {
                    self.join_run(&mut run);
                    self.put(bytes, request);
                }
            }
        }
        self.join_run(&mut run);
        drop(run);
        self.spare = old;
        self.spare.clear();
    }

    /// Joins these as far as they fit, releases first: a lock may be wanted again.
    fn join_run(&mut self, run: &mut Vec<Joinable<'_>>) {
        run.sort_by_key(|it| it.kind);
        while let Some(first) = run.first() {
            let fits = |other: &&Joinable<'_>| {
                other.kind == first.kind && self.joiner.fit(first.kind, &first.words, &other.words)
            };
            let count = run.iter().take(joined::MOST).take_while(fits).count();
            let group = run.drain(..count);
            if count < joined::LEAST {
                group.for_each(|it| self.put(it.bytes, it.request));
            } else {
                self.put_joined(group);
            }
        }
    }

    fn put_joined<'a>(&mut self, group: impl ExactSizeIterator<Item = Joinable<'a>>) {
        let mut joined = JoinedRequests { kind: 0, bytes: Vec::new(), members: Vec::new() };
        let mut words = Vec::with_capacity(group.len());
        joined.members.reserve_exact(group.len());
        for Joinable { kind, words: its, bytes, request: mut member } in group {
            joined.bytes.reserve(bytes.len() * (words.capacity() - words.len()));
            member.start = joined.bytes.len() as u64;
            joined.bytes.extend_from_slice(bytes);
            member.end = joined.bytes.len() as u64;
            joined.kind = kind;
            joined.members.push(member);
            words.push(its);
        }
        let due = joined.members.iter().min_by_key(|member| member.by).expect("there are several");
        let (id, by, start) = (due.id, due.by, self.end);
        let before = self.unsent.len();
        self.joiner.encode(joined.kind, &words, &mut self.unsent);
        self.end += (self.unsent.len() - before) as u64;
        let owner = ReplyOwner::Joined(Box::new(joined));
        let request = PendingRequest { id, start, end: self.end, by, owner, repeated: false };
        self.requests.push_back(request);
    }

    /// Gives back the buffer, of which the first `sent` bytes have left.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>, sent: usize) -> Vec<u8> {
        if sent == bytes.len() {
            bytes.clear();
            return bytes;
        }
        bytes.drain(..sent);
        bytes.append(&mut self.unsent);
        mem::replace(&mut self.unsent, bytes)
    }

    /// Assigns a reply to its request; an error if there is none. The thread that reads is not
    /// woken for its own.
    pub(super) fn assign(
        &mut self,
        reply: Reply,
        mine: Option<&Arc<ReplySlot>>,
        wakeups: &mut DeferredWakeups,
    ) -> Result<(), &'static str> {
        let sent = self.sent();
        match self.requests.front().filter(|request| request.end <= sent) {
            None => return Err("there is more than was asked for"),
            Some(PendingRequest { owner: ReplyOwner::Joined(joined), .. })
                if !joined.expects(&reply) =>
            {
                return Err("not one that our script gives");
            }
            Some(_) => {}
        }
        let request = self.requests.pop_front().expect("the front was looked at");
        match request.owner {
            ReplyOwner::Joined(joined) => self.distribute(*joined, reply, mine, wakeups),
            owner => self.reply(owner, request.by, reply, mine, wakeups),
        }
        Ok(())
    }

    fn reply(
        &mut self,
        owner: ReplyOwner,
        by: Moment,
        reply: Reply,
        mine: Option<&Arc<ReplySlot>>,
        wakeups: &mut DeferredWakeups,
    ) {
        match (owner, mine) {
            (ReplyOwner::Caller(slot), Some(mine)) if Arc::ptr_eq(&slot, mine) => {
                *slot.reply.lock() = Some(Ok(reply));
            }
            (owner, _) => self.settle(owner, by, Ok(reply), wakeups),
        }
    }

    /// Gives each of the joined requests its part of the reply. Those that have none, or an error,
    /// are to be sent again alone.
    fn distribute(
        &mut self,
        JoinedRequests { kind, bytes, members }: JoinedRequests,
        reply: Reply,
        mine: Option<&Arc<ReplySlot>>,
        wakeups: &mut DeferredWakeups,
    ) {
        let answers = match reply {
            Reply::Error(error) => {
                self.joiner.refused(kind, &error, self.last_received);
                Vec::new()
            }
            Reply::Array(answers) => {
                self.joiner.carried_out(kind);
                answers
            }
            _ => Vec::new(),
        };
        let mut answers = answers.into_iter();
        for mut member in members {
            match answers.next().filter(|answer| !matches!(answer, Reply::Error(_))) {
                Some(answer) => self.reply(member.owner, member.by, answer, mine, wakeups),
                None if matches!(member.owner, ReplyOwner::Abandoned) => {}
                None => {
                    self.resent += u64::from(matches!(member.owner, ReplyOwner::Callback(_)));
                    member.repeated = true;
                    self.put(&bytes[member.range(0)], member);
                }
            }
        }
    }

    /// Gives the outcome to its owner. A callback whose script the server did not know stays
    /// pending instead, until its deadline: its request is added again, with the text.
    fn settle(
        &mut self,
        owner: ReplyOwner,
        by: Moment,
        outcome: CallResult,
        wakeups: &mut DeferredWakeups,
    ) {
        match owner {
            ReplyOwner::Caller(slot) => {
                *slot.reply.lock() = Some(outcome);
                wakeups.wake.push(slot);
            }
            ReplyOwner::Callback(mut callback) => {
                let is_unknown = outcome.as_ref().is_ok_and(Reply::is_noscript);
                let is_late = by <= self.last_received;
                if is_unknown && !is_late && !callback.by_hash.is_empty() {
                    let again = with_text(&mem::take(&mut callback.by_hash), callback.text);
                    self.resent += 1;
                    self.add(&again, by, ReplyOwner::Callback(callback));
                } else {
                    self.callbacks -= 1;
                    wakeups.callbacks.push((callback, outcome));
                }
            }
            // Its members are settled one by one.
            ReplyOwner::Abandoned | ReplyOwner::Joined(_) => {}
        }
    }

    /// The caller gives up. `None`: it has its reply. Otherwise, whether its request may have left;
    /// one that has not is removed.
    pub(super) fn abandon(&mut self, id: RequestId) -> Option<MayHaveLeft> {
        let is_it = |request: &PendingRequest| request.id == id;
        let at = self.requests.iter().position(|request| request.each().iter().any(is_it))?;
        if let ReplyOwner::Joined(joined) = &mut self.requests[at].owner {
            let member = joined.members.iter_mut().find(|member| is_it(member));
            member.expect("it was found").owner = ReplyOwner::Abandoned;
            return Some(MayHaveLeft(true));
        }
        Some(self.abandon_at(at).1)
    }

    fn abandon_at(&mut self, at: usize) -> (ReplyOwner, MayHaveLeft) {
        let sent = self.sent();
        let request = &mut self.requests[at];
        let owner = mem::replace(&mut request.owner, ReplyOwner::Abandoned);
        if request.start < sent {
            return (owner, MayHaveLeft(true));
        }
        let repeated = request.repeated;
        let (start, length) = (request.start, request.end - request.start);
        self.requests.remove(at);
        let from = usize::try_from(start - sent).expect("it is in a buffer");
        let count = usize::try_from(length).expect("it is in a buffer");
        self.unsent.drain(from..from + count);
        self.end -= length;
        for later in self.requests.range_mut(at..) {
            later.start -= length;
            later.end -= length;
        }
        (owner, MayHaveLeft(repeated))
    }

    /// Fails the callbacks whose deadline has come.
    pub(super) fn expire_callbacks(
        &mut self,
        now: Moment,
        server: &Server,
        wakeups: &mut DeferredWakeups,
    ) {
        let mut at = 0;
        while at < self.requests.len() {
            let count = self.requests.len();
            let is_late = |request: &PendingRequest| {
                request.by <= now && matches!(request.owner, ReplyOwner::Callback(_))
            };
            let mut late = Vec::new();
            if let ReplyOwner::Joined(joined) = &mut self.requests[at].owner {
                for member in joined.members.iter_mut().filter(|member| is_late(member)) {
                    let owner = mem::replace(&mut member.owner, ReplyOwner::Abandoned);
                    late.push((owner, MayHaveLeft(true)));
                }
            } else if is_late(&self.requests[at]) {
                late.push(self.abandon_at(at));
            }
            for (owner, MayHaveLeft(left)) in late {
                let error = server.io_error("answer", io::ErrorKind::TimedOut.into());
                let error =
                    if left { CallError::Unknown(error) } else { CallError::NotSent(error) };
                if let ReplyOwner::Callback(callback) = owner {
                    self.callbacks -= 1;
                    wakeups.callbacks.push((callback, Err(error)));
                }
            }
            // One that has not left is removed.
            at += usize::from(self.requests.len() == count);
        }
    }

    /// Makes the first thread that waits the reader.
    pub(super) fn hand_over_reading(&mut self, wakeups: &mut DeferredWakeups) {
        self.asleep = false;
        let next = self.each().find_map(|request| Some((request.id, request.caller()?)));
        let next = next.map(|(id, slot)| (id, Arc::clone(slot)));
        self.reader = next.as_ref().map(|(id, _)| *id);
        wakeups.wake.extend(next.map(|(_, slot)| slot));
    }

    /// While the reader sleeps, has another thread that waits woken, to write what no thread
    /// writes. Without one, the reader writes when it wakes.
    pub(super) fn wake_a_writer(&self, wakeups: &mut DeferredWakeups) {
        if !self.asleep || !self.wants_writer() {
            return;
        }
        let reader = self.each().find(|request| Some(request.id) == self.reader);
        let reader = reader.and_then(PendingRequest::caller).map(|slot| &slot.signal);
        let is_reader =
            |slot: &Arc<ReplySlot>| reader.is_some_and(|it| Arc::ptr_eq(it, &slot.signal));
        let mut others =
            self.each().filter_map(PendingRequest::caller).filter(|slot| !is_reader(slot));
        wakeups.wake.extend(others.next().map(Arc::clone));
    }

    /// Fails all requests, each with what the error means for it. Only the first cause counts.
    pub(super) fn fail_all(&mut self, error: &Error, wakeups: &mut DeferredWakeups) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        let sent = self.sent();
        for request in mem::take(&mut self.requests) {
            let left = request.start < sent;
            for one in request.into_each() {
                let outcome = if left || one.repeated {
                    CallError::Unknown(error.clone())
                } else {
                    CallError::NotSent(error.clone())
                };
                self.settle(one.owner, one.by, Err(outcome), wakeups);
            }
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
