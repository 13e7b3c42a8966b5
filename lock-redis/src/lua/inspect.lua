-- inspect: who holds the lock, and for how long yet.
--
-- KEYS[1] the lock
--
-- Returns {pttl, field, value, ...}; pttl is -2 if it is free and -1 if it never ends.
--
-- Atomic because the holder and the time left must be of one moment. Changes nothing.

local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, redis.call('PTTL', KEYS[1]))
-- There is no such field; but a replica, which may have an old lock or none yet, refuses to delete it.
redis.call('HDEL', KEYS[1], 'distlock:nobody')
return answer
