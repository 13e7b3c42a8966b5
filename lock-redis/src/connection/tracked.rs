//! [`TrackedConnection`]: a connection that reads the keys of each renewal after it, so that the
//! server reports their next change.

use super::{
    BorrowedConnection, CallError, Connection, ConnectionLike, Request, Server, ServerGeneration,
};
use crate::connection::{Reply, ServerError, Text};
use lock_core::{Error, Moment};
use std::sync::Arc;

/// `CLIENT TRACKING ON OPTIN` was sent on it: the server tracks what the command behind a `CLIENT
/// CACHING YES` reads, and nothing that a script reads. In a script it would go through all keys
/// for each of its reads (Redis 7.0).
pub(crate) struct TrackedConnection<'a> {
    connection: BorrowedConnection<'a>,
    is_reading: bool,
    missed_change: bool,
    is_uncertain: bool,
    refusal: Option<ServerError>,
}

/// Has the keys tracked that the next command reads.
const CACHING: Request<'static> = Request(&[&[b"CLIENT", b"CACHING", b"YES"]]);

const EXISTS: &[&[u8]] = &[b"EXISTS"];

impl<'a> TrackedConnection<'a> {
    pub(crate) fn new(connection: BorrowedConnection<'a>) -> Self {
        Self {
            connection,
            is_reading: false,
            missed_change: false,
            is_uncertain: false,
            refusal: None,
        }
    }

    /// Whether a key was deleted behind its renewal and before it was read: that is not reported.
    pub(crate) fn has_missed_change(&self) -> bool {
        self.missed_change
    }

    /// Whether that cannot be told, because some were another's: one of those may stand for one
    /// that was deleted.
    pub(crate) fn may_have_missed_change(&self) -> bool {
        self.is_uncertain
    }

    /// Why the server tracks no keys any more, if it says so.
    pub(crate) fn refusal(&self) -> Option<&ServerError> {
        self.refusal.as_ref()
    }

    /// The connection to which changes are reported.
    pub(crate) fn reports_to(&self) -> u64 {
        self.connection.reports_to
    }
}

/// The keys of a script's run.
fn script_keys<'a>(request: &Request<'a>) -> Option<&'a [&'a [u8]]> {
    match *request.0 {
        [[b"EVALSHA" | b"EVAL", ..], keys, _] => Some(keys),
        _ => None,
    }
}

/// How many keys a renewal has written.
fn renewed(reply: &Reply, keys: &[&[u8]]) -> usize {
    match reply {
        Reply::Int(1) => keys.len(),
        Reply::Array(each) => each.iter().filter(|one| **one == Reply::Int(1)).count(),
        _ => 0,
    }
}

impl ConnectionLike for TrackedConnection<'_> {
    /// The reads are in the same write: what comes between is little.
    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        if !self.is_reading {
            return self.connection.call_many(requests, by);
        }
        let keys: Vec<_> = requests.iter().map(script_keys).collect();
        let reads: Vec<[&[&[u8]]; 2]> = keys
            .iter()
            .map(|keys| [EXISTS, keys.unwrap_or_default()])
            .collect();
        let mut all = Vec::with_capacity(3 * requests.len());
        for ((request, keys), read) in requests.iter().zip(&keys).zip(&reads) {
            all.push(*request);
            if keys.is_some() {
                all.extend([CACHING, Request(read)]);
            }
        }
        let (replies, outcome) = self.connection.call_many(&all, by);
        let mut replies = replies.into_iter();
        let mut answers = Vec::with_capacity(requests.len());
        for keys in keys {
            let Some(answer) = replies.next() else { break };
            if let Some(keys) = keys {
                if let Some(Reply::Error(error)) = replies.next() {
                    self.refusal = Some(error);
                }
                if let Some(Reply::Int(there)) = replies.next() {
                    let written = renewed(&answer, keys);
                    self.missed_change |= usize::try_from(there).is_ok_and(|it| it < written);
                    self.is_uncertain |= (1..keys.len()).contains(&written);
                }
            }
            answers.push(answer);
        }
        // What they say counts, also if the connection broke behind them.
        let outcome = if answers.len() == requests.len() {
            Ok(())
        } else {
            outcome
        };
        (answers, outcome)
    }

    fn is_first_use(&mut self, script: u64) -> bool {
        self.connection.is_first_use(script)
    }

    fn report_changes_of_keys(&mut self, are_reported: bool) {
        self.is_reading = are_reported;
    }

    fn history(&self) -> Option<&ServerGeneration> {
        self.connection.history()
    }

    fn is_one_store(&self) -> bool {
        self.connection.is_one_store()
    }

    fn server(&self) -> &Arc<Server> {
        self.connection.server()
    }

    fn close_with(&mut self, why: &Error) {
        self.connection.close_with(why);
    }
}

impl Connection {
    /// Has the server report changes of what is read on this connection to the one with this
    /// number. The error, if it refuses.
    pub(crate) fn report_to(
        &mut self,
        subscriber: u64,
        by: Moment,
    ) -> Result<Option<ServerError>, CallError> {
        let id = Text::number(subscriber);
        let tracking: &[&[u8]] = &[
            b"CLIENT",
            b"TRACKING",
            b"ON",
            b"REDIRECT",
            id.as_bytes(),
            b"OPTIN",
            b"NOLOOP",
        ];
        // Without the second nothing would be tracked.
        let (replies, outcome) = self.call_many(&[Request(&[tracking]), CACHING], by);
        outcome?;
        let refused = replies.into_iter().find_map(|reply| match reply {
            Reply::Error(error) => Some(error),
            _ => None,
        });
        if refused.is_none() {
            self.reports_to = subscriber;
        }
        Ok(refused)
    }
}
