-- force: frees the lock of any holder, and wakes its waiters.
--
-- KEYS[1] the lock; behind it what the ending needs: by default nothing
-- ARGV[1] channel
-- ARGV[2] the command that publishes
-- ARGV[3] anything, if it may be a read-write lock of very many readers; else left out
--
-- Returns 0 it was free; freed: 1 more than clients were told, or {1, why none was}.
--
-- Atomic because what is deleted must be what was looked at: only what looks like a lock of this
-- format is one.

local found = holder(KEYS[1], ARGV[3])
if found.err then
  return found
end
if #found == 0 then
  -- There is nothing to delete; but a replica, whose master may have the lock, refuses to.
  return redis.call('DEL', KEYS[1])
end
local channel, publish = ARGV[1], ARGV[2]
