//! [`AcknowledgedConnection`]: a link on which replicas are waited for after each request.
//!
//! `WAIT` says how many replicas have what *this connection* wrote, so it goes along with the
//! write: the same link, the same write to the socket, one round trip for both. It cannot stand in
//! the script, where Redis refuses it. The server answers nothing else on that connection
//! meanwhile, so no other request may share it.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{CallError, ConnectionLike, Reply, Request, Server, ServerError, Text};
use lock_core::backend::Failure;
use lock_core::{Clock, Error, InsufficientReplicas, Moment};
use std::sync::Arc;
use std::time::Duration;

/// Says how many replicas a node has now that are not held for down: for the policy "all". An
/// error if that is not known; nothing is sent then.
///
/// Asked at every attempt and every batch of renewals under that policy, so it answers from what it
/// knows.
pub(crate) type ReplicaCount = Arc<dyn Fn() -> Result<u32, Error> + Send + Sync>;

/// How many replicas must confirm a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeededReplicas {
    /// By the policy.
    pub(crate) count: u32,
    /// How many do not count: so many more must confirm.
    pub(crate) ahead: u32,
    /// How many are waited for: no more than there are.
    pub(crate) awaited: u32,
}

/// A link with `WAIT` after each request.
pub(crate) struct AcknowledgedConnection<'a> {
    link: &'a mut dyn ConnectionLike,
    clock: &'a dyn Clock,
    /// How many replicas to wait for.
    most: u32,
    time: Duration,
    heard: Acknowledgement,
}

/// What the server said of the last request.
pub(crate) enum Acknowledgement {
    /// So many replicas have it.
    By(u32),
    /// Nothing until the deadline.
    Late,
    /// It would not say.
    Refused(ServerError),
    /// The connection ended, or made no sense.
    Lost(Error),
}

impl<'a> AcknowledgedConnection<'a> {
    /// Waits for this many replicas, and for so long.
    pub(crate) fn new(
        link: &'a mut dyn ConnectionLike,
        clock: &'a dyn Clock,
        most: u32,
        time: Duration,
    ) -> Self {
        Self {
            link,
            clock,
            most,
            time,
            heard: Acknowledgement::By(0),
        }
    }

    /// Whether the last request, which was carried out, counts for one that needs so many: if not,
    /// what is missing.
    pub(crate) fn weigh(
        &self,
        needed: NeededReplicas,
    ) -> Result<Option<InsufficientReplicas>, Failure> {
        let NeededReplicas {
            count: needed,
            ahead,
            ..
        } = needed;
        let insufficient = |it: InsufficientReplicas| Ok(Some(it.clocks_ahead(ahead)));
        match &self.heard {
            // Which ones have confirmed it is not known: it may be those that do not count.
            Acknowledgement::By(count) if needed > 0 && *count >= needed.saturating_add(ahead) => {
                Ok(None)
            }
            Acknowledgement::By(count) => insufficient(InsufficientReplicas::new(*count, needed)),
            Acknowledgement::Late => insufficient(InsufficientReplicas::unanswered(needed)),
            // It was carried out, and is not to be kept like this: the caller must take it for
            // unknown.
            Acknowledgement::Refused(error) => {
                let server = self.link.server();
                Err(Failure::Unknown(error_mapping::explain(
                    server,
                    error,
                    &Asked::Confirmation,
                )))
            }
            Acknowledgement::Lost(error) => Err(Failure::Unknown(error.clone())),
        }
    }

    /// How many replicas have the last request, as far as the server has said.
    pub(crate) fn confirmed(&self) -> u32 {
        match self.heard {
            Acknowledgement::By(count) => count,
            _ => 0,
        }
    }

    /// How long the server may wait. Never zero, which is "for ever", and with time left for the
    /// answer: a number that is too small says more than no answer, and the link lives on.
    fn patience(&self, by: Moment) -> Duration {
        let left = by.since(self.clock.now());
        self.time.min(left / 4 * 3).max(Duration::from_millis(1))
    }
}

impl ConnectionLike for AcknowledgedConnection<'_> {
    /// One `WAIT` behind all of them.
    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        if self.most == 0 {
            return self.link.call_many(requests, by);
        }
        let (count, millis) = (
            Text::number(self.most.into()),
            Text::millis(self.patience(by)),
        );
        let words: [&[&[u8]]; 1] = [&[b"WAIT", count.as_bytes(), millis.as_bytes()]];
        let all = [requests, &[Request(&words)]].concat();
        let (mut replies, outcome) = self.link.call_many(&all, by);
        let said = if replies.len() > requests.len() {
            replies.pop()
        } else {
            None
        };
        self.heard = match (said, outcome) {
            (Some(Reply::Int(count)), Ok(())) => {
                Acknowledgement::By(u32::try_from(count).unwrap_or(0))
            }
            (Some(Reply::Error(error)), Ok(())) => Acknowledgement::Refused(error),
            (Some(_), Ok(())) => {
                self.link.close();
                Acknowledgement::Lost(self.link.server().garbage("not one that WAIT gives"))
            }
            (_, Err(error)) if replies.len() < requests.len() => return (replies, Err(error)),
            (None, Err(_)) if self.clock.now() >= by => Acknowledgement::Late,
            (_, Err(CallError::NotSent(error) | CallError::Unknown(error))) => {
                Acknowledgement::Lost(error)
            }
            (None, Ok(())) => unreachable!("as many answers as requests, or an error"),
        };
        (replies, Ok(()))
    }

    /// Behind a script that the server does not know, `WAIT` would wait all its time for nothing,
    /// and the text would have what is left of it: a short lease would end before its first
    /// renewal.
    fn needs_script_text(&mut self, script: u64) -> bool {
        self.most > 0 && self.link.is_first_use(script)
    }

    fn report_changes_of_keys(&mut self, are_reported: bool) {
        self.link.report_changes_of_keys(are_reported);
    }

    fn is_one_store(&self) -> bool {
        self.link.is_one_store()
    }

    fn server(&self) -> &Arc<Server> {
        self.link.server()
    }

    fn close_with(&mut self, why: &Error) {
        self.link.close_with(why);
    }
}
