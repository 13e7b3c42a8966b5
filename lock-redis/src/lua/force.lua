-- force: frees the lock of any holder, and wakes its waiters.
--
-- KEYS[1] the lock; behind it what the ending needs: by default nothing
-- ARGV[1] channel
-- ARGV[2] the command that publishes
-- ARGV[3] as ARGV[4] of release.lua, or ""
-- ARGV[4] anything, if it may be a read-write lock of very many readers; else left out
--
-- Returns 0 it was free; freed: what tell.lua returns.
--
-- Atomic because what is deleted must be what was looked at: only what looks like a lock of this
-- format is one.

local channel, publish, turns = ARGV[1], ARGV[2], ARGV[3]
local found = holder(KEYS[1], ARGV[4])
if found.err then
  return found
end
if #found == 0 then
  -- There is nothing to delete; but a replica, whose master may have the lock, refuses to. First:
  -- behind it the lock may be granted to the second waiter.
  redis.call('DEL', KEYS[1])
  skip_next(KEYS[1], publish, turns)
  return 0
end
free(KEYS[1])
