//! Joins unsent requests, and distributes the replies to joined ones.
//! [`joined`](crate::connection::multiplexed::joined) decides which requests can be joined.

use super::{
    CallerRequest, Content, DeferredWakeups, JoinedRequests, Joining, PendingRequests, ReplyOwner,
    ReplySlot,
};
use crate::connection::multiplexed::joined::{
    JoinKind, MAX_REQUESTS, MIN_REQUESTS, Outcome, Words, encode,
};
use crate::connection::{CallError, Reply};
use std::sync::Arc;
use std::{mem, vec};

/// A request that can be joined with others of its kind.
struct Joinable<'a> {
    kind: JoinKind,
    words: Words<'a>,
    bytes: &'a [u8],
    request: CallerRequest,
}

impl PendingRequests {
    /// Returns `true` if enough requests are unsent to join some, and joining is not paused.
    pub(super) fn may_join(&self) -> bool {
        let first = self
            .requests
            .len()
            .checked_sub(MIN_REQUESTS)
            .map(|at| &self.requests[at]);
        // The time of the last reply decides if joining is paused, which saves reading the clock.
        // So on a connection that was idle, a pause lasts until the next reply.
        first.is_some_and(|it| it.start >= self.sent()) && self.joiner.is_on(self.last_received)
    }

    /// Joins requests of which no byte has been sent, where they can be joined. No request
    /// overtakes one that cannot be joined.
    pub(super) fn join_unsent(&mut self) {
        let sent = self.sent();
        let first = self
            .requests
            .partition_point(|request| request.start < sent);
        let old = mem::replace(&mut self.unsent, mem::take(&mut self.spare));
        let whole = self.requests.split_off(first);
        // If the request before these was sent in part, the rest of its bytes comes first.
        let rest = whole.front().map_or(0, |request| request.range(sent).start);
        self.unsent.extend_from_slice(&old[..rest]);
        self.end = sent + rest as u64;
        let mut run = Vec::new();
        for request in whole {
            let bytes = &old[request.range(sent)];
            match (request.content, self.joiner.parse(bytes)) {
                (Content::One(request), Some((kind, words)))
                    if request.joining == Joining::Free =>
                {
                    run.push(Joinable {
                        kind,
                        words,
                        bytes,
                        request,
                    });
                }
                (content, _) => {
                    self.join_run(&mut run);
                    self.enqueue_content(content, |unsent| unsent.extend_from_slice(bytes));
                }
            }
        }
        self.join_run(&mut run);
        drop(run);
        self.spare = old;
        self.spare.clear();
    }

    /// Joins these requests in groups of one kind, whose common arguments are equal. Releases are
    /// sent before acquires, because an acquire may want a lock that is being released.
    fn join_run(&mut self, run: &mut Vec<Joinable<'_>>) {
        run.sort_by_key(|it| it.kind);
        while let Some(first) = run.first() {
            let fits = |other: &&Joinable<'_>| {
                other.kind == first.kind
                    && self.joiner.can_join(first.kind, &first.words, &other.words)
            };
            let count = run.iter().take(MAX_REQUESTS).take_while(fits).count();
            let group = run.drain(..count);
            if count < MIN_REQUESTS {
                group.for_each(|it| self.enqueue(it.bytes, it.request));
            } else {
                self.enqueue_joined(group);
            }
        }
    }

    fn enqueue_joined(&mut self, group: vec::Drain<'_, Joinable<'_>>) {
        let (count, kind) = (group.len(), group.as_slice()[0].kind);
        let mut bytes = Vec::with_capacity(group.as_slice().iter().map(|it| it.bytes.len()).sum());
        let (mut requests, mut ends) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut words = Vec::with_capacity(count);
        for joinable in group {
            bytes.extend_from_slice(joinable.bytes);
            ends.push(bytes.len());
            words.push(joinable.words);
            requests.push(joinable.request);
        }
        let script = self.joiner.script(kind);
        let joined = Box::new(JoinedRequests {
            kind,
            requests,
            bytes,
            ends,
        });
        self.enqueue_content(Content::Joined(joined), |unsent| {
            encode(script, &words, unsent);
        });
    }

    /// Gives each of the joined requests its part of the reply or an error, or sends the request
    /// again alone.
    pub(super) fn distribute(
        &mut self,
        joined: JoinedRequests,
        reply: Reply,
        mine: Option<&Arc<ReplySlot>>,
        wakeups: &mut DeferredWakeups,
    ) {
        let JoinedRequests {
            kind,
            requests,
            bytes,
            ends,
        } = joined;
        self.joiner.replied(kind, &reply, self.last_received);
        let outcomes = self.joiner.outcomes(kind, reply, requests.len());
        let mut start = 0;
        for ((mut request, end), outcome) in requests.into_iter().zip(ends).zip(outcomes) {
            match outcome {
                Outcome::Reply(reply) => self.deliver(request, Ok(reply), mine, wakeups),
                Outcome::Unknown(error) => {
                    self.deliver(request, Err(CallError::Unknown(error)), mine, wakeups);
                }
                Outcome::Repeat { .. } if matches!(request.owner, ReplyOwner::Abandoned) => {}
                Outcome::Repeat { may_have_run } => {
                    request.joining = Joining::Never;
                    request.may_have_run = may_have_run;
                    self.enqueue(&bytes[start..end], request);
                }
            }
            start = end;
        }
    }
}
