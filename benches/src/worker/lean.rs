//! The least that a lock in Redisson's hash can cost a server: three calls each to take and to free
//! it, without tokens, tombstones and re-entry, and without answers for whom it refuses.

/// KEYS: the lock. ARGV: lease, owner.
pub(super) const LOCK: &str = "\
if redis.call('exists', KEYS[1]) == 1 then return 0; end; \
redis.call('hset', KEYS[1], ARGV[2], 1); \
redis.call('pexpire', KEYS[1], ARGV[1]); \
return 1;";

/// KEYS: the lock. ARGV: owner, channel.
pub(super) const UNLOCK: &str = "\
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0; end; \
redis.call('del', KEYS[1]); \
return redis.call('publish', ARGV[2], 0) + 1;";
