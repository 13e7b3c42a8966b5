-- acquire: takes a fair lock for an owner if it is free and the owner is next, and makes its
-- fencing tokens; otherwise the owner enters the queue, or stays in it.
--
-- KEYS[1] the lock
-- KEYS[2] the counter     see acquire.lua of the mutex
-- KEYS[3] the tombstone   present while this owner is closed
-- KEYS[4] the queue       see queue.lua
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] for how long, in milliseconds, the owner counts as waiting from now on; "0" if it does
-- not wait
-- ARGV[4] the number of this attempt, if a release may grant it the lock; or "0"
-- ARGV[5], ARGV[6] as ARGV[3] and ARGV[4] of the mutex
--
-- Returns what the mutex's script does; the time of {0, time, told} is, where the lock is free, how
-- long the next owner counts as waiting.
--
-- Atomic because two owners must never both find the lock free or be next, a token must belong to
-- exactly one grant, and a late copy of a request must see the tombstone before it takes the lock
-- or enters the queue.

-- One look for both: mostly neither is there.
local found, pttl = redis.call('EXISTS', KEYS[1], KEYS[3]), -2
if found > 0 then
  pttl = redis.call('PTTL', KEYS[1])
  if found == 2 or pttl == -2 then
    return {0, -2, 1}
  end
end
local ours = pttl ~= -2 and look(redis.call, KEYS[1], ARGV[2]) == 1
if not ours then
  local now = clock()
  local owner, left = first(now)
  local is_next = not owner or owner == ARGV[2]
  if pttl ~= -2 or not is_next then
    if ARGV[3] ~= '0' then
      enter(now, ARGV[2], ARGV[3], ARGV[4])
    end
    return {0, pttl == -2 and left or pttl, tells(KEYS[1], is_next)}
  end
  -- What fails from here on ends the wait.
  if owner then
    leave(ARGV[2])
  end
end
return grant(KEYS[1], KEYS[2], ours, ARGV[1], ARGV[2], ARGV[5], ARGV[6])
