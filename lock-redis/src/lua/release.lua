-- release: frees the lock if this owner has it, and wakes those who wait.
--
-- KEYS[1] the lock; behind it what the ending needs, and `gone`: by default nothing
-- ARGV[1] owner
-- ARGV[2] channel
-- ARGV[3] the command that publishes
--
-- Returns 0 it was not this owner's; freed: 1 more than clients were told, or {1, why none was}.
--
-- Atomic because between the look and the DEL the lease may end and another owner come in. By
-- default the lock is the only key declared, so that on a cluster a release goes on while the slot
-- is moved.

if look(redis.call, KEYS[1], ARGV[1]) == 0 then
  return gone(redis.call, KEYS[1], ARGV[1])
end
local channel, publish = ARGV[2], ARGV[3]
