-- set_permits: sets how many permits a semaphore has.
--
-- KEYS[1] the semaphore
-- KEYS[2] the permits that are taken
-- ARGV[1] how many
-- ARGV[2] channel
-- ARGV[3] the command that publishes
--
-- Returns how many it had; nothing if no client had used it yet.
--
-- Atomic because a permit that is taken or freed in between would be counted twice, or not at all.

local free, taken = counted(KEYS[1], KEYS[2])
if type(free) == 'table' then
  return free
end
local before = free and free + taken
if free then
  free = redis.call('INCRBY', KEYS[1], ARGV[1] - before)
else
  free = ARGV[1] - taken
  if not redis.call('SET', KEYS[1], free, 'NX') then
    return redis.error_reply('WRONGTYPE the number of permits is an empty text')
  end
end
offer(ARGV[3], ARGV[2], free)
return before
