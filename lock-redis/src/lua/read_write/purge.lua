-- purge: ends the holds of readers whose leases are over, and frees the lock if no reader is left.
--
-- KEYS[1]      the lock
-- KEYS[2..]    for each of the readers below its holds, as many as it counts
-- ARGV[1]      channel
-- ARGV[2]      the command that publishes
-- ARGV[2i+1]   a reader
-- ARGV[2i+2]   how many holds it counts
--
-- Returns {1 if the lock is free, how long the last of these holds lasts (-2 for none), 1 if some
-- were ended}.
--
-- Atomic because a reader may come back between the look at its holds and the HDEL.

if redis.call('HGET', KEYS[1], 'mode') ~= 'read' then
  return {1 - redis.call('EXISTS', KEYS[1]), -2, 0}
end
local at, last, are_ended = 2, -2, false
for i = 3, #ARGV, 2 do
  local longest = -2
  for hold = at, at + ARGV[i + 1] - 1 do
    local left = redis.call('PTTL', KEYS[hold])
    longest = math.max(longest, left == -1 and redis.call('PTTL', KEYS[1]) or left)
  end
  at = at + ARGV[i + 1]
  -- One that counts others by now has come back.
  if longest == -2 and redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
    are_ended = true
  end
  last = math.max(last, longest)
end
if are_ended then
  settle(KEYS[1], ARGV[1], ARGV[2])
end
return {1 - redis.call('EXISTS', KEYS[1]), last, are_ended and 1 or 0}
