-- release_permits: frees the permits of an owner, and tells those who wait; or ends its wait.
--
-- KEYS[1] the semaphore
-- KEYS[2] the permits that are taken
-- KEYS[3] the tombstone of this owner; left out to leave none
-- ARGV[1] owner: the first 13 bytes of its permits
-- ARGV[2] how many
-- ARGV[3] channel
-- ARGV[4] the command that publishes
-- ARGV[5] the waiter's name in the queue and, each behind a space, the owner as a text, and "stay"
-- where another thread of the owner's client waits in its place
-- ARGV[6] how long the tombstone stays, in milliseconds
--
-- Returns 0 some were not this owner's any more, and those that were are free; freed: 1 more than
-- clients were told, or {1, why none was}.
--
-- Atomic because each permit that is removed must be counted, and once: another client that removes
-- it as expired counts it, too.

if KEYS[3] then
  -- A full server refuses what takes memory as a script's first write, and behind a write that
  -- takes none it does not.
  redis.call('DEL', KEYS[3])
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[6])
end
local free = counted(KEYS[1], KEYS[2])
if type(free) == 'table' then
  return free
end
local freed = redis.call('ZREM', KEYS[2], unpack(ids(ARGV[1], ARGV[2])))
if freed < tonumber(ARGV[2]) then
  -- One that lost permits may wait once more. Other data under the queue's key is no reason to keep
  -- permits.
  local queue, waiter, owner, stays = queue_of(KEYS[1]), string.match(ARGV[5], '^(%S+) (%S+)(.*)$')
  pcall(function()
    local first = first_present(queue)
    local has_left = step_back(queue, waiter, owner, stays == ' stay')
    -- Otherwise `offer` tells it below.
    if has_left and first == waiter and (freed == 0 or free and free + freed <= 0) then
      tell_next(queue, ARGV[4])
    end
  end)
end
if freed == 0 then
  return 0
end
-- Without a number the next client that asks counts what is taken.
free = free and redis.call('INCRBY', KEYS[1], freed) or freed
local told = offer(ARGV[4], ARGV[3], free)
return freed == tonumber(ARGV[2]) and told or 0
