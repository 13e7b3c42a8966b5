//! [`Exchange`]: an operation as a value: the requests that are sent next, and the continuation for
//! their replies. Independent of any connection.

use super::{unexpected_reply, unexpected_reply_to};
use crate::connection::error_mapping::{self, Asked};
use crate::connection::{Batch, CallError, Mark, Reply, Server, ServerError};
use crate::lua::Script;
use lock_core::Error;
use lock_core::backend::Failure;
use std::ops::Deref;

/// The rest of an operation.
pub(crate) enum Exchange<'a, T> {
    /// The operation is over.
    Done(Result<T, Failure>),
    /// These requests are sent next, in one write. The operation continues with their replies.
    Send(Batch, Continuation<'a, T>),
    /// The last reply is one that the named command cannot give. The connection is closed, and the
    /// operation fails.
    Unexpected(String),
}

/// Continues an operation with the replies to its requests, or with their failure.
pub(crate) type Continuation<'a, T> = Box<dyn FnOnce(&mut Received<'_>) -> Exchange<'a, T> + 'a>;

impl<'a, T: 'a> Exchange<'a, T> {
    /// Returns an operation that is over with this result.
    pub(crate) fn done(value: T) -> Self {
        Self::Done(Ok(value))
    }

    /// Sends these requests. The failure of a decisive request ends the operation. Any other
    /// failure is left to `next` ([`Received::take_outcome`]).
    pub(crate) fn send(batch: Batch, next: impl FnOnce(&mut Received<'_>) -> Self + 'a) -> Self {
        Self::Send(
            batch,
            Box::new(move |received| match received.failure.take() {
                Some(failure) => Self::Done(Err(failure)),
                None => next(received),
            }),
        )
    }

    /// Sends this request, and continues with `again` if the server refuses it to this user.
    pub(crate) fn send_or(
        batch: Batch,
        again: impl FnOnce() -> Self + 'a,
        next: impl FnOnce(&mut Received<'_>) -> Self + 'a,
    ) -> Self {
        Self::Send(
            batch,
            Box::new(move |received| match received.failure.take() {
                Some(_) if received.replies.first().is_some_and(is_refusal) => again(),
                Some(failure) => Self::Done(Err(failure)),
                None => next(received),
            }),
        )
    }

    /// Sends these requests. The operation ends with the result that `read` makes of the replies.
    pub(crate) fn call(
        batch: Batch,
        read: impl FnOnce(&mut Received<'_>) -> Result<T, Failure> + 'a,
    ) -> Self {
        Self::send(batch, |received| Self::Done(read(received)))
    }

    /// Continues with the outcome, even if it is a failure, but not after an unexpected reply.
    pub(crate) fn then_with_outcome<U: 'a>(
        self,
        next: impl FnOnce(Result<T, Failure>) -> Exchange<'a, U> + 'a,
    ) -> Exchange<'a, U> {
        match self {
            Self::Done(outcome) => next(outcome),
            Self::Send(batch, read) => Exchange::Send(
                batch,
                Box::new(move |received| read(received).then_with_outcome(next)),
            ),
            Self::Unexpected(command) => Exchange::Unexpected(command),
        }
    }

    /// Continues with the result. A failure ends the operation.
    pub(crate) fn then<U: 'a>(
        self,
        next: impl FnOnce(T) -> Exchange<'a, U> + 'a,
    ) -> Exchange<'a, U> {
        self.then_with_outcome(|outcome| match outcome {
            Ok(value) => next(value),
            Err(failure) => Exchange::Done(Err(failure)),
        })
    }

    /// Changes the result of the operation.
    pub(crate) fn map<U: 'a>(self, change: impl FnOnce(T) -> U + 'a) -> Exchange<'a, U> {
        self.then(|value| Exchange::done(change(value)))
    }

    /// Returns an operation that does not fail, but has the outcome of this operation as its
    /// result.
    pub(crate) fn caught(self) -> Exchange<'a, Result<T, Failure>> {
        self.then_with_outcome(Exchange::done)
    }

    /// Returns the operation, or one that is over with the failure.
    pub(crate) fn from_result(exchange: Result<Self, Failure>) -> Self {
        exchange.unwrap_or_else(|failure| Self::Done(Err(failure)))
    }
}

/// Returns true if the server refuses this user a key or a command.
pub(super) fn is_refusal(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(error) if error.code == "NOPERM")
}

/// Carries out an operation for each item, one after the other, until one fails.
pub(crate) fn in_turn<'a, I: Iterator + 'a, T: 'a>(
    items: I,
    operation: impl Fn(I::Item) -> Exchange<'a, T> + 'a,
) -> Exchange<'a, Vec<T>> {
    continue_in_turn(items, Vec::new(), operation)
}

fn continue_in_turn<'a, I: Iterator + 'a, T: 'a>(
    mut items: I,
    mut results: Vec<T>,
    operation: impl Fn(I::Item) -> Exchange<'a, T> + 'a,
) -> Exchange<'a, Vec<T>> {
    while let Some(item) = items.next() {
        match operation(item) {
            Exchange::Done(Ok(result)) => results.push(result),
            Exchange::Done(Err(failure)) => return Exchange::Done(Err(failure)),
            exchange => {
                return exchange.then(|result| {
                    results.push(result);
                    continue_in_turn(items, results, operation)
                });
            }
        }
    }
    Exchange::done(results)
}

/// The replies to the requests of a batch, in their order.
#[derive(Debug)]
pub(crate) enum Replies {
    One([Reply; 1]),
    Many(Vec<Reply>),
}

impl Replies {
    /// Returns all replies but the first.
    pub(crate) fn without_first(self) -> Self {
        match self {
            Self::One(_) => Self::Many(Vec::new()),
            Self::Many(mut replies) => {
                replies.drain(..replies.len().min(1));
                Self::Many(replies)
            }
        }
    }
}

impl Deref for Replies {
    type Target = [Reply];

    fn deref(&self) -> &[Reply] {
        match self {
            Self::One(reply) => reply,
            Self::Many(replies) => replies,
        }
    }
}

/// The replies to a batch, and its failure.
pub(crate) struct Received<'a> {
    pub(super) batch: &'a Batch,
    pub(super) server: &'a Server,
    pub(super) replies: Replies,
    /// The error because of which replies are missing, if some are.
    pub(super) outcome: Result<(), CallError>,
    /// The failure of the batch, if its decisive request failed.
    pub(super) failure: Option<Failure>,
    /// The reason to close the connection.
    pub(super) closes: Option<Error>,
    /// The key whose value explains the failure of the operation.
    pub(super) found_under: Option<String>,
}

impl Received<'_> {
    /// Returns the server that has replied.
    pub(crate) fn server(&self) -> &Server {
        self.server
    }

    /// Returns the reply to the first request.
    pub(crate) fn reply(&self) -> &Reply {
        self.replies.first().unwrap_or(&Reply::Nil)
    }

    /// Removes and returns the replies.
    pub(crate) fn take_replies(&mut self) -> Replies {
        std::mem::replace(&mut self.replies, Replies::Many(Vec::new()))
    }

    /// Removes all replies, and returns the reply to the first request.
    pub(crate) fn take_reply(&mut self) -> Reply {
        match self.take_replies() {
            Replies::One([reply]) => reply,
            Replies::Many(replies) => replies.into_iter().next().unwrap_or(Reply::Nil),
        }
    }

    /// Removes and returns the error because of which replies are missing.
    pub(crate) fn take_outcome(&mut self) -> Result<(), CallError> {
        std::mem::replace(&mut self.outcome, Ok(()))
    }

    /// Returns the failure of a request to which the server replied with an error. Closes a
    /// connection to a replica: the server may have been the master when the connection was made,
    /// and its host name may lead to another server by now.
    pub(crate) fn refused(&mut self, answer: &ServerError, asked: &Asked<'_>) -> Failure {
        let failure = error_mapping::refused(self.server, answer, asked);
        if error_mapping::is_by_a_replica(failure.error()) {
            self.closes.get_or_insert(failure.error().clone());
        }
        failure
    }

    /// Returns the failure of the request at this place of the batch.
    pub(crate) fn refused_at(&mut self, place: usize, answer: &ServerError) -> Failure {
        let batch = self.batch;
        match batch.marks().nth(place) {
            Some(mark) => self.refused(answer, &Batch::asked(mark, &batch.key_of(mark))),
            None => self.refused(answer, &Asked::Introduction),
        }
    }

    /// Returns the first key of the request at this place of the batch.
    pub(crate) fn key_at(&self, place: usize) -> String {
        let mark = self.batch.marks().nth(place);
        mark.map_or_else(String::new, |mark| self.batch.key_of(mark).into_owned())
    }

    /// Returns the failure of the request at this place of the batch, whose reply does not fit the
    /// request. Closes the connection.
    pub(crate) fn unexpected_at(&mut self, place: usize) -> Failure {
        match self.batch.marks().nth(place).and_then(Mark::script) {
            Some(script) => self.unexpected(script),
            None => self.unexpected_to("sent"),
        }
    }

    /// Makes the failure of the operation describe the value that is found under this key.
    pub(crate) fn set_found_key(&mut self, key: &str) {
        self.found_under = Some(key.to_owned());
    }

    /// Closes the connection, because the last reply does not fit the request.
    pub(crate) fn close(&mut self) {
        self.closes.get_or_insert_with(|| self.server.out_of_step());
    }

    /// Returns the failure of a request that this script has answered with a reply that it cannot
    /// give. Closes the connection: if this reply belongs to another request, so do all later
    /// replies.
    pub(crate) fn unexpected(&mut self, script: &Script) -> Failure {
        self.close();
        unexpected_reply(self.server, &format!("the script `{}`", script.name))
    }

    /// Returns the failure of a request that this command has answered with a reply that it cannot
    /// give. Closes the connection.
    pub(crate) fn unexpected_to(&mut self, command: &str) -> Failure {
        self.close();
        unexpected_reply_to(self.server, command)
    }
}

/// Operations without a connection: the tests read the requests, and make up the replies.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Endpoint;
    use crate::protocol::OwnedFormat;
    use crate::protocol::label::Labels;
    use crate::protocol::settings::read_owned_format;
    use lock_core::backend::{AcquisitionId, Answer, Attempt, Receipt, Renewal, RenewalRequest};
    use lock_core::{ClientId, Config, LeaseTime, LockKind, LockName, OwnerId};
    use std::time::Duration;

    /// Returns the scripts and commands of the operation's next write, and the operation after it
    /// got these replies.
    fn reply<'a, T>(
        exchange: Exchange<'a, T>,
        replies: Vec<Reply>,
    ) -> (Vec<String>, Exchange<'a, T>) {
        let Exchange::Send(batch, next) = exchange else {
            panic!("it is over")
        };
        let sent = batch.marks().map(|mark| {
            let name = mark.script().map_or("-", |script| script.name);
            format!("{name} {}", batch.key_of(mark))
        });
        let sent = sent.collect();
        let server = Server::new(Endpoint::tcp("test", 1), None);
        let mut received = Received {
            batch: &batch,
            server: &server,
            replies: Replies::Many(replies),
            outcome: Ok(()),
            failure: None,
            closes: None,
            found_under: None,
        };
        (sent, next(&mut received))
    }

    fn outcome<T>(exchange: Exchange<'_, T>) -> Result<T, Failure> {
        match exchange {
            Exchange::Done(outcome) => outcome,
            _ => panic!("it is not over"),
        }
    }

    fn format() -> OwnedFormat {
        read_owned_format(&Config::from_url("redis://h?tokens=off").unwrap()).unwrap()
    }

    fn owner() -> OwnerId {
        OwnerId::new(ClientId::random(), 7)
    }

    fn lease() -> LeaseTime {
        LeaseTime::new(Duration::from_secs(30)).unwrap()
    }

    #[test]
    fn mutex_is_granted_by_one_reply() {
        let (format, name) = (format(), LockName::new("x").unwrap());
        let attempt = Attempt::new(&name, owner(), lease());
        let exchange = format.acquire(&attempt, &|_, _| false).unwrap();
        let (sent, exchange) = reply(exchange, vec![Reply::Int(1)]);
        assert_eq!(sent, ["acquire x"]);
        assert!(matches!(outcome(exchange), Ok(Answer::Granted(_))));
    }

    #[test]
    fn mutex_without_expiry_is_inspected_before_it_counts_as_busy() {
        let (format, name) = (format(), LockName::new("x").unwrap());
        let attempt = Attempt::new(&name, owner(), lease());
        let exchange = format.acquire(&attempt, &|_, _| false).unwrap();
        let busy = Reply::Array([0, -1, 1].map(Reply::Int).to_vec());
        let (_, exchange) = reply(exchange, vec![busy]);
        let held = vec![
            Reply::Int(-1),
            Reply::Bulk(b"someone".to_vec()),
            Reply::Bulk(b"1".to_vec()),
        ];
        let (sent, exchange) = reply(exchange, vec![Reply::Array(held)]);
        assert_eq!(sent, ["inspect x"]);
        assert!(matches!(
            outcome(exchange),
            Ok(Answer::BusyWithoutExpiry(_))
        ));
    }

    #[test]
    fn renewals_of_several_kinds_are_one_write() {
        let (format, owner) = (format(), owner());
        let renewal = |(name, kind)| {
            let name = LockName::new(name).unwrap().of_kind(kind);
            RenewalRequest::new(AcquisitionId::new(name, owner, lease(), Receipt::default()))
        };
        let batch = [
            ("r", LockKind::Read),
            ("a", LockKind::Mutex),
            ("f", LockKind::FairWrite),
            ("b", LockKind::Mutex),
        ]
        .map(renewal);
        let mutexes = Reply::Array(vec![Reply::Int(1), Reply::Int(0)]);
        let replies = vec![mutexes, Reply::Int(1), Reply::Int(0)];
        let (sent, exchange) = reply(format.renew(&batch, true), replies);
        assert_eq!(sent, ["renew a", "renew_read r", "renew f"]);
        let renewals = outcome(exchange).unwrap().into_iter().map(Result::unwrap);
        let expected = [
            Renewal::Extended,
            Renewal::Extended,
            Renewal::Gone,
            Renewal::Gone,
        ];
        assert_eq!(renewals.collect::<Vec<_>>(), expected);
        let (sent, _) = reply(format.renew(&batch[1..], false), vec![Reply::Int(1); 3]);
        assert_eq!(sent, ["renew a", "renew b", "renew f"]);
    }

    #[test]
    fn renewal_that_is_not_sent_leaves_those_of_mutexes() {
        let config = Config::from_url("redis://h?format=token").unwrap();
        let (format, owner) = (read_owned_format(&config).unwrap(), owner());
        let batch = [LockKind::Mutex, LockKind::Write].map(|kind| {
            let name = LockName::new("x").unwrap().of_kind(kind);
            RenewalRequest::new(AcquisitionId::new(name, owner, lease(), Receipt::default()))
        });
        let (_, exchange) = reply(format.renew(&batch, true), vec![Reply::Int(1)]);
        let renewals = outcome(exchange).unwrap();
        assert!(matches!(
            renewals[..],
            [Ok(Renewal::Extended), Err(Failure::NotSent(_))]
        ));
    }

    #[test]
    fn unexpected_reply_closes_the_connection() {
        let (format, name) = (format(), LockName::new("x").unwrap());
        let (batch, server) = (Batch::new(), Server::new(Endpoint::tcp("test", 1), None));
        let Exchange::Send(_, next) = format.inspect(&name, Labels::LeftOut) else {
            panic!("it is over")
        };
        let mut received = Received {
            batch: &batch,
            server: &server,
            replies: Replies::One([Reply::Int(7)]),
            outcome: Ok(()),
            failure: None,
            closes: None,
            found_under: None,
        };
        let failure = outcome(next(&mut received)).unwrap_err();
        assert!(matches!(failure, Failure::Unknown(_)), "{failure:?}");
        assert!(received.closes.is_some());
    }

    #[test]
    fn operations_in_turn_end_with_the_first_failure() {
        let batch = || Batch::command("GET", b"x", &[]);
        let get = move |_: i32| {
            Exchange::call(batch(), |received| match received.reply() {
                Reply::Int(number) => Ok(*number),
                _ => Err(received.unexpected_to("GET")),
            })
        };
        let (_, exchange) = reply(in_turn([1, 2, 3].into_iter(), get), vec![Reply::Int(4)]);
        let (_, exchange) = reply(exchange, vec![Reply::Nil]);
        assert!(outcome(exchange).is_err());
        let caught = move |one| get(one).caught();
        let (_, exchange) = reply(in_turn([1, 2].into_iter(), caught), vec![Reply::Nil]);
        let (_, exchange) = reply(exchange, vec![Reply::Int(5)]);
        let all = outcome(exchange).unwrap();
        assert!(all[0].is_err() && matches!(all[1], Ok(5)), "{all:?}");
    }
}
