-- force_permits: frees all permits of a semaphore, and wakes those who wait.
--
-- KEYS[1] the semaphore
-- KEYS[2] the permits that are taken
-- ARGV[1] channel
-- ARGV[2] the command that publishes
--
-- Returns 0 none was taken; freed: 1 more than clients were told, or {1, why none was}.
--
-- Atomic because each permit that is removed must be counted, and once.

local free, taken = counted(KEYS[1], KEYS[2])
if type(free) == 'table' then
  return free
end
if redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf') == 0 then
  skip_next(KEYS[1], ARGV[2], 'free')
end
-- Also if there is none: a replica, whose master may have some, refuses to.
unlink(KEYS[2])
if taken == 0 then
  return 0
end
free = free and redis.call('INCRBY', KEYS[1], taken) or taken
return offer(ARGV[2], ARGV[1], free)
