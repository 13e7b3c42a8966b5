//! The two scripts of Redisson's `RLock`, as the reference for the server's cost of this library's
//! scripts: version 4.4.0, `RedissonLock.tryLockInnerAsync` and `RedissonLock.unlockInnerAsync`,
//! written from the description of what they send.
//!
//! The first script counts the hold. The second one ends the hold, publishes, and sets a *latch*,
//! from which a repeated unlock gets the answer of the first unlock. The client deletes the latch
//! with a third command, which is not counted here.

/// KEYS: the lock. ARGV: lease, owner.
pub(super) const LOCK: &str = "\
if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
redis.call('hincrby', KEYS[1], ARGV[2], 1); \
redis.call('pexpire', KEYS[1], ARGV[1]); \
return nil; \
end; \
return redis.call('pttl', KEYS[1]);";

/// KEYS: the lock, the channel, the latch. ARGV: message, lease, owner, how to publish, the latch's
/// lifetime.
pub(super) const UNLOCK: &str = "\
local val = redis.call('get', KEYS[3]); \
if val ~= false then \
return tonumber(val); \
end; \
if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then \
return nil; \
end; \
local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
if (counter > 0) then \
redis.call('pexpire', KEYS[1], ARGV[2]); \
redis.call('set', KEYS[3], 0, 'px', ARGV[5]); \
return 0; \
else \
redis.call('del', KEYS[1]); \
redis.call(ARGV[4], KEYS[2], ARGV[1]); \
redis.call('set', KEYS[3], 1, 'px', ARGV[5]); \
return 1; \
end;";
