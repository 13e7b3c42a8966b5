//! `token`: a lock as most libraries other than Redisson store it: a text that only the owner
//! knows, with the lease as TTL (see "Distributed Locks with Redis" in the Redis documentation, and
//! the last form of a lock on its page about `SET`).
//!
//! This library acquires such a lock by a script, which also makes the fencing token, in a
//! companion key. Even without tokens, it does not use the plain `SET key owner NX PX lease` of
//! other libraries: a copy of that command that arrives late would take the lock for an owner that
//! has given up, and a service that refuses scripts would grant a lock that this library cannot
//! release. A client that only polls sees no difference. Our waiters receive our releases on a
//! channel of this library.

use super::Dialect;
use crate::lua::join::Join;
use crate::lua::{joins, scripts};

pub(super) const CHANNEL: &str = "distlock_lock__channel";

/// The dialect of `format=token` without `wakes=`.
pub(crate) static TOKEN: Dialect =
    Dialect::token(scripts!(words: "token", channel: CHANNEL), &JOINS);

static JOINS: [Join; 2] = joins!(TOKEN, words: "token", channel: CHANNEL);
