-- inspect: who holds the lock, and for how long yet.
--
-- KEYS[1] the lock
--
-- Returns {pttl, field, value, ...}; pttl is -2 if it is free and -1 if it never ends.
--
-- Atomic because the holder and the time left must be of one moment. Writes nothing.

local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, redis.call('PTTL', KEYS[1]))
return answer
