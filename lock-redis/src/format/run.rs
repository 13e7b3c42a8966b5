//! Scripts on a connection: by their hash, which is short, and by their text where the server does
//! not know the hash (a restart, `SCRIPT FLUSH`, the first time ever).
//!
//! `NOSCRIPT` says that nothing was carried out. From the text on the server knows the script.

use super::{refused, with_found_value};
use crate::connection::error_mapping::Asked;
use crate::connection::{
    CallError, CallbackRequest, ConnectionLike, Reply, ReplyCheck, Request, SharedConnection, Text,
};
use crate::lua::Script;
use lock_core::Moment;
use lock_core::backend::Failure;

/// What a script is run on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) keys: &'a [&'a [u8]],
    pub(super) arguments: &'a [&'a [u8]],
}

/// Runs a script; an error that it answers with is a refusal.
pub(crate) fn run(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    key: &str,
    keys: &[&[u8]],
    arguments: &[&[u8]],
    by: Moment,
) -> Result<Reply, Failure> {
    let count = Text::number(keys.len() as u64);
    let by_hash: &[&[u8]] = &[b"EVALSHA", script.hash().as_bytes(), count.as_bytes()];
    let by_text: &[&[u8]] = &[b"EVAL", script.source.as_bytes(), count.as_bytes()];
    let known = if link.needs_script_text(script.bit) {
        None
    } else {
        let reply = link.call(&Request(&[by_hash, keys, arguments]), by)?;
        Some(reply).filter(|reply| !reply.is_noscript())
    };
    let reply = match known {
        Some(reply) => reply,
        None => link.call(&Request(&[by_text, keys, arguments]), by)?,
    };
    if let Reply::Error(error) = &reply {
        let failure = refused(link, error, &Asked::Script(script, key));
        return Err(with_found_value(link, failure, key, by));
    }
    Ok(reply)
}

/// Runs a script several times in one go, each time with keys and arguments of its own. The answers
/// are in the same order; fewer, and why, if not all came.
pub(super) fn run_many(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    runs: &[Run<'_>],
    by: Moment,
) -> (Vec<Reply>, Result<(), CallError>) {
    let by_text = [b"EVAL", script.source.as_bytes()];
    if link.needs_script_text(script.bit) {
        return send_many(by_text, link, runs, by);
    }
    let by_hash = [b"EVALSHA", script.hash().as_bytes()];
    let (mut replies, outcome) = send_many(by_hash, link, runs, by);
    let unknown: Vec<_> = (0..replies.len()).filter(|run| replies[*run].is_noscript()).collect();
    if outcome.is_err() || unknown.is_empty() {
        return (replies, outcome);
    }
    let again: Vec<_> = unknown.iter().map(|run| runs[*run]).collect();
    // Each by its text: the first may be turned away before the server learns the script from it.
    let (answers, outcome) = send_many(by_text, link, &again, by);
    // What was unknown the first time was not carried out then; now it may have been. None is left
    // out in the middle: nothing here tells one from the other, and a renewal may be repeated.
    if outcome.is_err() {
        return (Vec::new(), outcome);
    }
    for (run, answer) in unknown.into_iter().zip(answers) {
        replies[run] = answer;
    }
    (replies, Ok(()))
}

fn send_many(
    how: [&[u8]; 2],
    link: &mut dyn ConnectionLike,
    runs: &[Run<'_>],
    by: Moment,
) -> (Vec<Reply>, Result<(), CallError>) {
    let counts: Vec<_> = runs.iter().map(|run| Text::number(run.keys.len() as u64)).collect();
    let heads: Vec<_> = counts.iter().map(|count| [how[0], how[1], count.as_bytes()]).collect();
    let words: Vec<[&[&[u8]]; 3]> = heads
        .iter()
        .zip(runs)
        .map(|(head, run)| [head.as_slice(), run.keys, run.arguments])
        .collect();
    let requests: Vec<_> = words.iter().map(|words| Request(words)).collect();
    link.call_many(&requests, by)
}

/// Runs a script without waiting for the answer: that goes to `done`.
pub(super) fn submit(
    script: &'static Script,
    link: &SharedConnection,
    keys: &[&[u8]],
    arguments: &[&[u8]],
    by: Moment,
    done: impl FnOnce(Result<Reply, Failure>) -> ReplyCheck + Send + 'static,
) {
    let count = Text::number(keys.len() as u64);
    let text: &[&[u8]] = &[b"EVAL", script.source.as_bytes(), count.as_bytes()];
    let hash: &[&[u8]] = &[b"EVALSHA", script.hash().as_bytes(), count.as_bytes()];
    let (text, hash) = ([text, keys, arguments], [hash, keys, arguments]);
    let callback =
        CallbackRequest { by_hash: Vec::new(), text: script.source, done: Box::new(done) };
    link.submit(&Request(&text), Some((script.bit, &Request(&hash))), by, callback);
}
