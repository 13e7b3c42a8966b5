//! [`AskingConnection`]: a connection to a cluster node that a slot is being moved to.

use super::{BorrowedConnection, CallError, ConnectionLike, Request, Server};
use crate::connection::Reply;
use lock_core::{Error, Moment};
use std::sync::Arc;

/// Sends `ASKING` before each request, in the same write, so that the node serves a slot that is
/// not its own yet. Before a transaction it is sent once: inside, it would be queued with the rest.
pub(crate) struct AskingConnection<'a> {
    connection: BorrowedConnection<'a>,
    in_transaction: bool,
}

const ASKING: Request<'static> = Request(&[&[b"ASKING"]]);

impl<'a> AskingConnection<'a> {
    pub(crate) fn new(connection: BorrowedConnection<'a>) -> Self {
        Self {
            connection,
            in_transaction: false,
        }
    }

    /// Whether `ASKING` goes before each of these.
    fn asked_for(&mut self, requests: &[Request<'_>]) -> Vec<bool> {
        let is = |request: &Request<'_>, word: &[u8]| {
            request
                .0
                .first()
                .and_then(|words| words.first())
                .is_some_and(|first| *first == word)
        };
        let mut goes_before = Vec::with_capacity(requests.len());
        for request in requests {
            goes_before.push(!self.in_transaction);
            self.in_transaction =
                is(request, b"MULTI") || (self.in_transaction && !is(request, b"EXEC"));
        }
        goes_before
    }
}

impl ConnectionLike for AskingConnection<'_> {
    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        let goes_before = self.asked_for(requests);
        let each = requests.iter().zip(&goes_before);
        let both: Vec<_> = each
            .flat_map(|(request, before)| before.then_some(ASKING).into_iter().chain([*request]))
            .collect();
        let (replies, outcome) = self.connection.call_many(&both, by);
        let mut answers = Vec::with_capacity(requests.len());
        let mut replies = replies.into_iter();
        for before in goes_before {
            let asking = if before { replies.next() } else { None };
            let Some(answer) = replies.next() else { break };
            // Where `ASKING` was refused, the next reply only says that the slot is elsewhere.
            let refused = asking.filter(|asking| matches!(asking, Reply::Error(_)));
            answers.push(refused.unwrap_or(answer));
        }
        (answers, outcome)
    }

    fn is_first_use(&mut self, script: u64) -> bool {
        self.connection.is_first_use(script)
    }

    fn server(&self) -> &Arc<Server> {
        self.connection.server()
    }

    fn close_with(&mut self, why: &Error) {
        self.connection.close_with(why);
    }
}
