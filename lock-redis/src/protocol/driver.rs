//! Carries operations out on a connection: sends their requests, and handles what all operations
//! have in common.
//!
//! - A script is sent by its hash, which is short, or by its text if the server does not know the
//!   hash (after a restart or `SCRIPT FLUSH`, or at first use). Before a `WAIT`, the first use on
//!   the connection is by the text at once. The reply `NOSCRIPT` means that nothing was carried
//!   out. Once it has received the text, the server knows the hash.
//! - An error of the server becomes an error that names the cause; if the key holds other data, the
//!   hint describes the value that is found there.
//! - A connection is closed if it leads to a replica, or if a reply does not fit its request.

use super::exchange::{Exchange, Received, Replies};
use super::release::ReleaseCall;
use super::{Format, FormatKind, unexpected_reply, unexpected_reply_to, with_found_value};
use crate::connection::error_mapping::{self, Asked};
use crate::connection::{
    Batch, CallError, ConnectionLike, Mark, Reply, ReplyCheck, ServerError, SharedConnection,
};
use crate::lua::Script;
use lock_core::Moment;
use lock_core::backend::{AcquisitionId, Failure, Release, ReleaseOptions};
use std::sync::Arc;

/// Carries an operation out on a connection.
pub(crate) fn drive<T>(
    exchange: Exchange<'_, T>,
    link: &mut dyn ConnectionLike,
    by: Moment,
) -> Result<T, Failure> {
    let mut next = exchange;
    loop {
        match next {
            Exchange::Done(outcome) => return outcome,
            Exchange::Unexpected(command) => {
                link.close();
                return Err(unexpected_reply_to(link.server(), &command));
            }
            Exchange::Send(batch, read) => {
                let (exchange, found_under) = call(&batch, link, by, read);
                next = match (exchange, found_under) {
                    (Exchange::Done(Err(failure)), Some(key)) => {
                        Exchange::Done(Err(with_found_value(link, failure, &key, by)))
                    }
                    (exchange, _) => exchange,
                };
            }
        }
    }
}

/// Ends a hold, and waits for the reply.
pub(crate) fn release(
    format: &Format,
    link: &mut dyn ConnectionLike,
    acquisition: &AcquisitionId,
    options: ReleaseOptions,
    by: Moment,
) -> Result<Release, Failure> {
    match &*format.0 {
        FormatKind::Owned(owned) => {
            let ReleaseCall { batch, reader } = owned.release(acquisition, options)?;
            let read = |received: &mut Received<'_>| match received.failure.take() {
                Some(failure) => Err(failure),
                None => reader.read(received),
            };
            call(&batch, link, by, read).0
        }
        FormatKind::Classic(classic) => drive(classic.release(acquisition)?, link, by),
    }
}

/// Sends the request that ends a hold, and passes the outcome to `done` without waiting for it.
pub(crate) fn submit_release(
    ReleaseCall { batch, reader }: ReleaseCall<'_>,
    link: &SharedConnection,
    by: Moment,
    done: impl FnOnce(Result<Release, Failure>) + Send + 'static,
) {
    let (server, reader) = (Arc::clone(link.server()), reader.into_static());
    let on_reply = move |outcome: Result<Reply, Failure>| {
        let mut check = ReplyCheck::Expected;
        done(outcome.and_then(|reply| {
            if let Reply::Error(error) = &reply {
                let asked = Asked::Script(reader.script, &reader.key);
                return Err(error_mapping::refused(&server, error, &asked));
            }
            reader.parse(&server, &reply).ok_or_else(|| {
                check = ReplyCheck::Unexpected;
                unexpected_reply(&server, &format!("the script `{}`", reader.script.name))
            })
        }));
        check
    };
    link.submit(&batch, by, Box::new(on_reply));
}

/// Sends these requests and passes the replies to `read`. Returns the result, and the key whose
/// value explains its error.
fn call<R>(
    batch: &Batch,
    link: &mut dyn ConnectionLike,
    by: Moment,
    read: impl FnOnce(&mut Received<'_>) -> R,
) -> (R, Option<String>) {
    let (replies, mut outcome) = match batch.only() {
        Some(mark) => match transmit_one(batch, mark, link, by) {
            Ok(reply) => (Replies::One([reply]), Ok(())),
            Err(error) => (Replies::Many(Vec::new()), Err(error)),
        },
        None => {
            let (replies, outcome) = transmit_many(batch, link, by);
            (Replies::Many(replies), outcome)
        }
    };
    let mut failure = None;
    if let Some(mark) = batch.decisive() {
        match replies.first() {
            Some(Reply::Error(error)) => failure = Some(refused(batch, mark, error, link, by)),
            Some(_) => {}
            None => {
                let error = std::mem::replace(&mut outcome, Ok(()));
                failure = error.err().map(Failure::from);
            }
        }
    }
    let mut received = Received {
        batch,
        server: link.server(),
        replies,
        outcome,
        failure,
        closes: None,
        found_under: None,
    };
    let result = read(&mut received);
    let (closes, found_under) = (received.closes.take(), received.found_under.take());
    if let Some(why) = closes {
        link.close_with(&why);
    }
    (result, found_under)
}

/// Returns the failure of a batch whose decisive request got an error. The message names the first
/// key of that request, which is the lock's. Closes the connection if the error shows that it leads
/// to a replica.
#[cold]
fn refused(
    batch: &Batch,
    mark: &Mark,
    error: &ServerError,
    link: &mut dyn ConnectionLike,
    by: Moment,
) -> Failure {
    let key = batch.key_of(mark);
    let failure = error_mapping::refused(link.server(), error, &Batch::asked(mark, &key));
    if error_mapping::is_by_a_replica(failure.error()) {
        link.close_with(failure.error());
    }
    with_found_value(link, failure, &key, by)
}

/// Sends the only request. If it is a script that the server does not know, sends it once more by
/// its text.
fn transmit_one(
    batch: &Batch,
    mark: &Mark,
    link: &mut dyn ConnectionLike,
    by: Moment,
) -> Result<Reply, CallError> {
    if let Some(script) = mark.script() {
        if link.needs_script_text(script) {
            return link.exchange_one(&batch.with_texts(|_| true), by);
        }
        let reply = link.exchange_one(batch, by)?;
        if !reply.is_noscript() {
            return Ok(reply);
        }
        return link.exchange_one(&batch.with_texts(|_| true), by);
    }
    link.exchange_one(batch, by)
}

/// Sends these requests. Sends each script that the server does not know once more by its text.
fn transmit_many(
    batch: &Batch,
    link: &mut dyn ConnectionLike,
    by: Moment,
) -> (Vec<Reply>, Result<(), CallError>) {
    // If a script is sent by its text, all its runs in the batch are: the server may reject the
    // first one, for instance with `MOVED`, before it learns the script.
    let mut by_text: Vec<&'static Script> = Vec::new();
    let mut by_hash: Vec<&'static Script> = Vec::new();
    for script in batch.marks().filter_map(Mark::script) {
        let is_listed = |list: &[&'static Script]| list.iter().any(|it| std::ptr::eq(*it, script));
        if !is_listed(&by_text) && !is_listed(&by_hash) {
            if link.needs_script_text(script) {
                by_text.push(script);
            } else {
                by_hash.push(script);
            }
        }
    }
    let (mut replies, outcome) = if by_text.is_empty() {
        link.exchange(batch, by)
    } else {
        let is_by_text = |script: &Script| by_text.iter().any(|it| std::ptr::eq(*it, script));
        link.exchange(&batch.with_texts(is_by_text), by)
    };
    let is_unknown = |at: usize| replies.get(at).is_some_and(Reply::is_noscript);
    let scripts = batch.marks().enumerate();
    let scripts = scripts.filter(|(_, mark)| mark.script().is_some());
    let (unknown, known): (Vec<_>, Vec<_>) =
        scripts.map(|(at, _)| at).partition(|at| is_unknown(*at));
    let Some(&first) = unknown.first() else {
        return (replies, outcome);
    };
    match outcome {
        Ok(()) => {}
        // The connection broke after all scripts got `NOSCRIPT`: none was carried out.
        Err(CallError::NotSent(error) | CallError::Unknown(error)) if known.is_empty() => {
            return (Vec::new(), Err(CallError::NotSent(error)));
        }
        Err(error) => return (replies, Err(error)),
    }
    // The other commands of the batch have been carried out, so only the unknown scripts are sent
    // again.
    let (answers, outcome) = link.exchange(&batch.repeated(|at| unknown.contains(&at)), by);
    if let Err(error) = outcome {
        // The returned replies must have no gaps, so all from the first unknown script on are
        // dropped. A script among these may have been carried out, so the error must not say that
        // nothing was sent.
        replies.truncate(first);
        return match (error, known.last().is_some_and(|last| *last > first)) {
            (CallError::NotSent(error), true) => (replies, Err(CallError::Unknown(error))),
            (error, _) => (replies, Err(error)),
        };
    }
    for (at, answer) in unknown.into_iter().zip(answers) {
        replies[at] = answer;
    }
    (replies, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Endpoint, Server};
    use lock_core::{Clock, Error, SystemClock};
    use std::collections::VecDeque;

    static SCRIPT: Script = Script::new("test", "", None, "return 1");

    type Outcome = (Vec<Reply>, Result<(), CallError>);

    /// A connection with these outcomes for its writes.
    struct Scripted(Arc<Server>, VecDeque<Outcome>);

    impl ConnectionLike for Scripted {
        fn exchange(&mut self, _: &Batch, _: Moment) -> Outcome {
            self.1.pop_front().expect("a write that was expected")
        }

        fn server(&self) -> &Arc<Server> {
            &self.0
        }

        fn close_with(&mut self, _: &Error) {}
    }

    /// Returns the outcome of three scripts in one write, on a connection with these outcomes.
    fn three(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
        let server = Arc::new(Server::new(Endpoint::tcp("test", 1), None));
        let mut link = Scripted(server, outcomes.into_iter().collect());
        let mut batch = Batch::new();
        for key in [b"a", b"b", b"c"] {
            batch.add_script(&SCRIPT, &[key], &[]);
        }
        let outcome = transmit_many(&batch, &mut link, SystemClock.now());
        assert!(link.1.is_empty());
        outcome
    }

    fn noscript() -> Reply {
        Reply::Error(ServerError::parse("NOSCRIPT No matching script."))
    }

    fn not_sent() -> Result<(), CallError> {
        Err(CallError::NotSent(Error::unavailable("on purpose")))
    }

    fn unknown() -> Result<(), CallError> {
        Err(CallError::Unknown(Error::unavailable("on purpose")))
    }

    #[test]
    fn failed_repeat_keeps_the_replies_before_it() {
        let first = vec![Reply::Int(1), Reply::Int(2), noscript()];
        let (replies, outcome) = three([(first, Ok(())), (Vec::new(), not_sent())]);
        assert_eq!(replies, [Reply::Int(1), Reply::Int(2)]);
        assert!(matches!(outcome, Err(CallError::NotSent(_))), "{outcome:?}");
    }

    #[test]
    fn failed_repeat_does_not_deny_a_script_that_was_carried_out() {
        let first = vec![Reply::Int(1), noscript(), Reply::Int(3)];
        let (replies, outcome) = three([(first, Ok(())), (Vec::new(), not_sent())]);
        assert_eq!(replies, [Reply::Int(1)]);
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
    }

    #[test]
    fn scripts_that_the_server_did_not_know_were_not_carried_out() {
        let (replies, outcome) = three([(vec![noscript(), noscript(), noscript()], unknown())]);
        assert!(replies.is_empty());
        assert!(matches!(outcome, Err(CallError::NotSent(_))), "{outcome:?}");
    }

    #[test]
    fn repeat_puts_the_replies_in_their_places() {
        let first = vec![noscript(), Reply::Int(2), noscript()];
        let again = vec![Reply::Int(1), Reply::Int(3)];
        let (replies, outcome) = three([(first, Ok(())), (again, Ok(()))]);
        assert_eq!(replies, [Reply::Int(1), Reply::Int(2), Reply::Int(3)]);
        assert!(outcome.is_ok());
    }
}
