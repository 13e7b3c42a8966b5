//! [`DirectGrant`]: the fewest requests that a change of owner can cost. The script that releases
//! the lock also grants it to the next waiter, and wakes only that one. There are no tokens, and
//! nothing is done for a waiter that has died: it keeps the lock until its lease ends.

use super::contend::Contender;
use crate::learn::load;
use crate::raw::{Raw, Reply, request};
use std::time::Duration;

/// KEYS: the lock, the waiters. ARGV: lease, owner.
const LOCK: &str = "\
if redis.call('exists', KEYS[1]) == 1 then return redis.call('rpush', KEYS[2], ARGV[2]); end; \
redis.call('hset', KEYS[1], ARGV[2], 1); \
redis.call('pexpire', KEYS[1], ARGV[1]); \
return 0;";

/// KEYS and ARGV as in [`LOCK`]. A grant is published on a channel of the waiter's own.
const UNLOCK: &str = "\
if redis.call('hdel', KEYS[1], ARGV[2]) == 0 then return 0; end; \
local next = redis.call('lpop', KEYS[2]); \
if next then \
redis.call('hset', KEYS[1], next, 1); \
redis.call('pexpire', KEYS[1], ARGV[1]); \
redis.call('publish', next, ''); \
end; \
return 1;";

const LEASE: &str = "30000";

/// The bound on a wait: longer than any wait in a turn, so that a missing grant is noticed.
const LONG: Duration = Duration::from_secs(60);

pub(super) struct DirectGrant {
    raw: Raw,
    messages: Raw,
    lock: Vec<u8>,
    unlock: Vec<u8>,
}

impl DirectGrant {
    pub(super) fn new(port: u16, name: &str, number: usize) -> Self {
        let (mut raw, mut messages) = (Raw::connect(port), Raw::connect(port));
        let (owner, waiters) = (format!("{name}:{number}"), format!("{name}:waiters"));
        messages.call(&request(&["SUBSCRIBE", &owner]));
        let [lock, unlock] = [LOCK, UNLOCK].map(|script| {
            let hash = load(&mut raw, script);
            request(&["EVALSHA", &hash, "2", name, &waiters, LEASE, &owner])
        });
        Self {
            raw,
            messages,
            lock,
            unlock,
        }
    }
}

impl Contender for DirectGrant {
    fn cycle(&mut self, inside: &mut dyn FnMut()) {
        if !matches!(self.raw.call(&self.lock), Reply::Int(0)) {
            assert!(self.messages.next_within(LONG).is_some(), "it is granted");
        }
        inside();
        assert!(
            matches!(self.raw.call(&self.unlock), Reply::Int(1)),
            "it was ours"
        );
    }
}
