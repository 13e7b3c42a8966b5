-- inspect: who holds the lock, and for how long yet.
--
-- KEYS[1] the lock
--
-- Returns {pttl, owner, hold count}, and behind them the mode of a read-write lock, which may have
-- other holders; pttl is -2 if it is free and -1 if it never ends.
--
-- Atomic because the holder and the time left must be of one moment. Changes nothing.

local answer = holder(KEYS[1], 10)
if answer.err then
  return answer
end
table.insert(answer, 1, redis.call('PTTL', KEYS[1]))
-- No owner is called that; but a replica, which may have an old lock or none yet, refuses.
gone(redis.call, KEYS[1], 'distlock:no-owner')
return answer
