//! `redisson`: a lock as Redisson's `RLock` stores it, with the tokens of its `RFencedLock`.
//!
//! Under the lock's key is a hash of one field, `owner -> 1`. The TTL of the key is the lease. The
//! message `0` on the lock's channel announces that the lock is free. Redisson counts re-entries in
//! the value; this library counts them locally, so its value is always 1.

use super::Dialect;
use crate::lua::join::Join;
use crate::lua::{joins, scripts};

pub(super) const CHANNEL: &str = "redisson_lock__channel";

/// The default format.
pub(crate) static REDISSON: Dialect = Dialect {
    name: "redisson",
    key_type: "hash",
    // The scripts check the fields.
    is_lock: |_| true,
    scripts: scripts!(words: "redisson", channel: CHANNEL),
    joins: &JOINS,
    has_all_kinds: true,
    detects_silent_holders: false,
};

static JOINS: [Join; 2] = joins!(REDISSON, words: "redisson", channel: CHANNEL);
