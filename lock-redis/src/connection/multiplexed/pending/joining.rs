//! How unsent requests are joined, and the reply to joined ones distributed. Which can be joined
//! says [`joined`](crate::connection::multiplexed::joined).

use super::{
    CallerRequest, Content, DeferredWakeups, JoinedRequests, Joining, PendingRequests, ReplyOwner,
    ReplySlot,
};
use crate::connection::Reply;
use crate::connection::multiplexed::joined::{JoinKind, MAX_REQUESTS, MIN_REQUESTS, Words, encode};
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
    /// Whether so many requests are unsent that some may be joined.
    pub(super) fn may_join(&self) -> bool {
        let first = self.requests.len().checked_sub(MIN_REQUESTS).map(|at| &self.requests[at]);
        // The time of the last reply will do.
        first.is_some_and(|it| it.start >= self.sent()) && self.joiner.is_on(self.last_received)
    }

    /// Joins what can be joined of the requests of which nothing is sent. None overtakes one that
    /// cannot be joined.
    pub(super) fn join_unsent(&mut self) {
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
            match (request.content, self.joiner.parse(bytes)) {
                (Content::One(request), Some((kind, words)))
                    if request.joining == Joining::Free =>
                {
                    run.push(Joinable { kind, words, bytes, request });
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

    /// Joins these as far as they fit. Releases leave before acquires, one of which may want a lock
    /// that is being released.
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
        let (join, by_text) = self.joiner.script(kind);
        let joined = Box::new(JoinedRequests { kind, requests, bytes, ends });
        self.enqueue_content(Content::Joined(joined), |unsent| {
            encode(join, by_text, &words, unsent);
        });
    }

    /// Gives each of the joined requests its part of the reply. One that was not carried out is
    /// sent again alone, so that the server says of itself why not.
    pub(super) fn distribute(
        &mut self,
        joined: JoinedRequests,
        reply: Reply,
        mine: Option<&Arc<ReplySlot>>,
        wakeups: &mut DeferredWakeups,
    ) {
        let JoinedRequests { kind, requests, bytes, ends } = joined;
        self.joiner.replied(kind, &reply, self.last_received);
        let (answers, repeats) = match reply {
            Reply::Array(answers) => (answers, true),
            error => (vec![error.clone(); requests.len()], self.joiner.repeats(kind, &error)),
        };
        let mut start = 0;
        for ((mut request, end), answer) in requests.into_iter().zip(ends).zip(answers) {
            let is_abandoned = matches!(request.owner, ReplyOwner::Abandoned);
            if !repeats || is_abandoned || !matches!(answer, Reply::Error(_)) {
                self.reply(request, answer, mine, wakeups);
            } else if request.by <= self.last_received {
                // Too late to send it, which is not the server's refusal: the caller will find that
                // it has no time left to send it by its text.
                self.reply(request, Reply::noscript(), mine, wakeups);
            } else {
                request.joining = Joining::Never;
                self.enqueue(&bytes[start..end], request);
            }
            start = end;
        }
    }
}
