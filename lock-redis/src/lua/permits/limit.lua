-- set_permits: sets how many permits a semaphore has, or changes it by a number.
--
-- KEYS[1] the semaphore
-- KEYS[2] the permits that are taken
-- ARGV[1] how many; with ARGV[4] only if no client has used the semaphore yet
-- ARGV[2] channel
-- ARGV[3] the command that publishes
-- ARGV[4] left out to set it; or by how much it changes
-- ARGV[5] the largest that it may become so
--
-- Returns {limit, before}: before is left out if no client had used it yet, and limit is 0 if it
-- would become too small or too large: then nothing is changed.
--
-- Atomic because a permit that is taken or freed in between would be counted twice, or not at all;
-- and of two changes by a number both must count.

local free, taken = counted(KEYS[1], KEYS[2])
if type(free) == 'table' then
  return free
end
local before, limit = free and free + taken, tonumber(ARGV[1])
if ARGV[4] then
  limit = (before or limit) + ARGV[4]
  if limit < 1 or limit > tonumber(ARGV[5]) then
    return {0, before}
  end
end
if free then
  free = redis.call('INCRBY', KEYS[1], limit - before)
else
  free = limit - taken
  if not redis.call('SET', KEYS[1], free, 'NX') then
    return redis.error_reply('WRONGTYPE the number of permits is an empty text')
  end
end
offer(ARGV[3], ARGV[2], free)
return {limit, before}
