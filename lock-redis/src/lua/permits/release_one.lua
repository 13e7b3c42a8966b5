-- release_permit: frees one permit of any owner, and wakes those who wait.
--
-- KEYS[1] the semaphore
-- KEYS[2] the permits that are taken
-- ARGV[1] the permit
-- ARGV[2] channel
-- ARGV[3] the command that publishes
--
-- Returns 0 it is not taken, or has expired; freed: 1 more than clients were told, or {1, why none
-- was}.
--
-- Atomic because a permit that is removed must be counted, and once.

local free = counted(KEYS[1], KEYS[2])
if type(free) == 'table' then
  return free
end
local expiry = redis.call('ZMSCORE', KEYS[2], ARGV[1])[1]
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then
  return 0
end
-- Without a number the next client that asks counts what is taken.
local told = offer(ARGV[3], ARGV[2], free and redis.call('INCRBY', KEYS[1], 1) or 1)
return tonumber(expiry) > now and told or 0
