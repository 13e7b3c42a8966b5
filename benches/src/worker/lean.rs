//! The scripts that cost the server least for a lock in Redisson's hash: three calls each to
//! acquire and to release, without tokens, tombstones and re-entry. A refused client learns only
//! that the lock is busy.

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
