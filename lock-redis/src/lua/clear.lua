-- clear: deletes the lock if this is its value.
--
-- KEYS[1] the lock
-- ARGV[1] value
--
-- Returns 1 freed, 0 it had another value, or none.
--
-- Atomic because between the look and the DEL the lock may pass to another client.

-- GETEX, because a replica refuses it: what that lacks, its master may have.
if redis.call('GETEX', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
