//! `token`: a lock as most libraries other than Redisson store it: a text that only the owner
//! knows, with the lease as TTL (see "Distributed Locks with Redis" in the Redis documentation, and
//! the last form of a lock on its page about `SET`).
//!
//! This library acquires such a lock by a script, which also makes the fencing token, in a
//! companion key. With tokens switched off, an attempt first sends one plain `SET key owner NX PX
//! lease`, as other libraries do, unless its caller waits in the queue in the store. A foreign
//! client that polls sees no difference. Our waiters receive our releases on a channel of this
//! library.

use super::Dialect;
use super::exchange::Exchange;
use crate::connection::{Batch, Reply, Text};
use crate::lua::join::Join;
use crate::lua::{joins, scripts};
use lock_core::backend::Attempt;

pub(super) const CHANNEL: &str = "distlock_lock__channel";

/// The dialect of `format=token` without `wakes=`.
pub(crate) static TOKEN: Dialect =
    Dialect::token(scripts!(words: "token", channel: CHANNEL), &JOINS);

static JOINS: [Join; 2] = joins!(TOKEN, words: "token", channel: CHANNEL);

/// Acquires the lock as foreign clients do, if it is free. Otherwise the command changes nothing,
/// and the caller runs the script, which recognizes a lock that a copy of this attempt has
/// acquired. Unlike the script, this command does not check for a tombstone.
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
