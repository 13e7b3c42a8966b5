-- count: counts up, and gives what it began an expiry.
--
-- KEYS[1] the lock
-- ARGV[1] lease in seconds
--
-- Returns the count: 1 is the lock.
--
-- Atomic because a client that goes away between the two would leave a lock that never ends. An
-- error of the second does not undo the first: so the algorithm has it.

local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return count
