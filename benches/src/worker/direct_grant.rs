//! The fewest requests that a change of owner can cost: a release gives the lock to the next waiter
//! in the same script, and wakes it alone. Without leases that are claimed, tokens, and anything
//! for a waiter that has died.

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

/// The same. Each waiter hears of its own grants.
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

/// Longer than any wait.
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
