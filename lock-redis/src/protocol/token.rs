//! `token`: a lock as most libraries but Redisson have it: a string that only its owner knows, and
//! whose TTL is the lease (the Redis documentation's "Distributed Locks with Redis", and the last
//! form on the page of its `SET`).
//!
//! Ours is taken with a script, which makes its fencing token along with it, in a key beside it;
//! where those are switched off, by one plain `SET key owner NX PX lease`, as theirs. A client that
//! only polls sees no difference; our waiters hear of our releases on a channel of ours.

use super::Dialect;
use super::exchange::Exchange;
use crate::connection::{Batch, Reply, Text};
use crate::lua::join::Join;
use crate::lua::{joins, scripts};
use lock_core::backend::Attempt;

pub(super) const CHANNEL: &str = "distlock_lock__channel";

/// The dialect without `wakes=`.
pub(crate) static TOKEN: Dialect = Dialect::token(
    scripts!(
        words: "token",
        ending: "usual",
        channel: CHANNEL,
        wakes: None
    ),
    &JOINS,
);

static JOINS: [Join; 2] = joins!(TOKEN, words: "token", channel: CHANNEL);

/// Takes the lock as foreign clients do, if it is free; otherwise nothing happens, and our script
/// knows why: its answer to a copy of this attempt may have been lost. Unlike the script, this
/// minds no tombstone.
pub(super) fn take_by_set<'a>(key: &str, attempt: &Attempt<'_>) -> Exchange<'a, bool> {
    let (owner, lease) = (
        Text::owner(attempt.owner),
        Text::number(attempt.lease.as_millis()),
    );
    let words: &[&[u8]] = &[owner.as_bytes(), b"NX", b"PX", lease.as_bytes()];
    let batch = Batch::command("SET", key.as_bytes(), words);
    Exchange::call(batch, |received| match received.reply() {
        Reply::Text(_) => Ok(true),
        Reply::Nil => Ok(false),
        _ => Err(received.unexpected_to("SET")),
    })
}
