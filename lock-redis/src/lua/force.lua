-- force: frees the lock whoever has it, and wakes those who wait.
--
-- KEYS[1] the lock
-- ARGV[1] channel
-- ARGV[2] the command that publishes
--
-- Returns 1 freed, 0 it was free.
--
-- Atomic because what is deleted must be what was looked at: only what looks like a lock of this format is one.

local found = holder(KEYS[1])
if found.err then
  return found
end
if #found == 0 then
  -- There is nothing to delete; but a replica, whose master may have the lock, refuses to.
  return redis.call('DEL', KEYS[1])
end
redis.call(ARGV[2], ARGV[1], '0')
redis.call('DEL', KEYS[1])
return 1
