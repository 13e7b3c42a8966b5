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
use std::borrow::Cow;
use std::iter::once;

/// What a script is run on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) keys: &'a [&'a [u8]],
    pub(crate) arguments: &'a [&'a [u8]],
}

/// Of the commands behind a script: none.
pub(crate) const NONE: &[[&[u8]; 0]] = &[];

/// The words of each command as the only group of a [`Request`].
fn in_groups<'a, const N: usize>(commands: &'a [[&'a [u8]; N]]) -> Vec<[&'a [&'a [u8]]; 1]> {
    commands.iter().map(|words| [words.as_slice()]).collect()
}

/// Runs a script; an error that it answers with is a refusal.
pub(crate) fn run(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    keys: &[&[u8]],
    arguments: &[&[u8]],
    by: Moment,
) -> Result<Reply, Failure> {
    let count = Text::number(keys.len() as u64);
    let known = if link.needs_script_text(script) {
        None
    } else {
        let head: &[&[u8]] = &[b"EVALSHA", script.hash().as_bytes(), count.as_bytes()];
        Some(link.call(&Request(&[head, keys, arguments]), by)?).filter(|it| !it.is_noscript())
    };
    let reply = match known {
        Some(reply) => reply,
        None => send_text(script, link, &Run { keys, arguments }, by)?,
    };
    not_refused(script, link, keys, reply, by)
}

/// Sends it with its text.
fn send_text(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    Run { keys, arguments }: &Run<'_>,
    by: Moment,
) -> Result<Reply, CallError> {
    let count = Text::number(keys.len() as u64);
    let head: &[&[u8]] = &[b"EVAL", script.source.as_bytes(), count.as_bytes()];
    link.call(&Request(&[head, keys, arguments]), by)
}

/// The same with other commands behind it, in the same write. Their replies, as far as they came:
/// the script's alone decides.
pub(super) fn run_with<const N: usize>(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    run: &Run<'_>,
    others: &[[&[u8]; N]],
    by: Moment,
) -> Result<(Reply, Vec<Reply>), Failure> {
    let Run { keys, arguments } = run;
    let count = Text::number(keys.len() as u64);
    let how: [&[u8]; 2] = match link.needs_script_text(script) {
        true => [b"EVAL", script.source.as_bytes()],
        false => [b"EVALSHA", script.hash().as_bytes()],
    };
    let head: &[&[u8]] = &[how[0], how[1], count.as_bytes()];
    let words = [head, keys, arguments];
    let others = in_groups(others);
    let others = others.iter().map(|words| Request(words));
    let requests: Vec<_> = once(Request(&words)).chain(others).collect();
    let (mut replies, outcome) = link.call_many(&requests, by);
    if replies.is_empty() {
        return Err(outcome.expect_err("as many replies as requests").into());
    }
    let answers = replies.split_off(1);
    let mut reply = replies.remove(0);
    if reply.is_noscript() {
        // The others went with its hash: the script goes alone.
        reply = send_text(script, link, run, by)?;
    }
    Ok((not_refused(script, link, keys, reply, by)?, answers))
}

/// The same with reads of these keys behind it.
pub(super) fn run_with_reads(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    run: &Run<'_>,
    read: &[String],
    by: Moment,
) -> Result<(Reply, Vec<Reply>), Failure> {
    let words: Vec<_> = read
        .iter()
        .map(|key| [b"GET".as_slice(), key.as_bytes()])
        .collect();
    run_with(script, link, run, &words, by)
}

/// The reply, unless it is an error: that is told of the first key, the lock's.
fn not_refused(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    keys: &[&[u8]],
    reply: Reply,
    by: Moment,
) -> Result<Reply, Failure> {
    if let Reply::Error(error) = &reply {
        let key = keys
            .first()
            .map_or(Cow::default(), |key| String::from_utf8_lossy(key));
        let failure = refused(link, error, &Asked::Script(script, &key));
        return Err(with_found_value(link, failure, &key, by));
    }
    Ok(reply)
}

/// Runs a script several times in one go, each time with keys and arguments of its own, and with
/// other commands behind all of them. The answers are in the same order; fewer, and why, if not all
/// came.
pub(crate) fn run_many<const N: usize>(
    script: &'static Script,
    link: &mut dyn ConnectionLike,
    runs: &[Run<'_>],
    others: &[[&[u8]; N]],
    by: Moment,
) -> (Vec<Reply>, Result<(), CallError>) {
    let by_text = [b"EVAL", script.source.as_bytes()];
    if link.needs_script_text(script) {
        return send_many(by_text, link, runs, others, by);
    }
    let by_hash = [b"EVALSHA", script.hash().as_bytes()];
    let (mut replies, outcome) = send_many(by_hash, link, runs, others, by);
    let ran = replies.len().min(runs.len());
    let unknown: Vec<_> = (0..ran).filter(|run| replies[*run].is_noscript()).collect();
    if outcome.is_err() || unknown.is_empty() {
        return (replies, outcome);
    }
    let again: Vec<_> = unknown.iter().map(|run| runs[*run]).collect();
    // Each by its text: the first may be turned away before the server learns the script from it.
    let (answers, outcome) = send_many(by_text, link, &again, NONE, by);
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

fn send_many<const N: usize>(
    how: [&[u8]; 2],
    link: &mut dyn ConnectionLike,
    runs: &[Run<'_>],
    others: &[[&[u8]; N]],
    by: Moment,
) -> (Vec<Reply>, Result<(), CallError>) {
    let counts: Vec<_> = runs
        .iter()
        .map(|run| Text::number(run.keys.len() as u64))
        .collect();
    let heads: Vec<_> = counts
        .iter()
        .map(|count| [how[0], how[1], count.as_bytes()])
        .collect();
    let words: Vec<[&[&[u8]]; 3]> = heads
        .iter()
        .zip(runs)
        .map(|(head, run)| [head.as_slice(), run.keys, run.arguments])
        .collect();
    let others = in_groups(others);
    let others = others.iter().map(|words| Request(words));
    let requests: Vec<_> = words
        .iter()
        .map(|words| Request(words))
        .chain(others)
        .collect();
    link.call_many(&requests, by)
}

/// Runs a script without waiting for the answer: that goes to `done`.
pub(super) fn submit(
    script: &'static Script,
    link: &SharedConnection,
    Run { keys, arguments }: &Run<'_>,
    by: Moment,
    done: impl FnOnce(Result<Reply, Failure>) -> ReplyCheck + Send + 'static,
) {
    let count = Text::number(keys.len() as u64);
    let text: &[&[u8]] = &[b"EVAL", script.source.as_bytes(), count.as_bytes()];
    let hash: &[&[u8]] = &[b"EVALSHA", script.hash().as_bytes(), count.as_bytes()];
    let (text, hash) = ([text, keys, arguments], [hash, keys, arguments]);
    let callback = CallbackRequest {
        by_hash: Vec::new(),
        text: script.source,
        done: Box::new(done),
    };
    link.submit(
        &Request(&text),
        Some((script, &Request(&hash))),
        by,
        callback,
    );
}
