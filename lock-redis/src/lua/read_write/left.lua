-- left: how long holds last yet.
--
-- KEYS[1]   the lock
-- KEYS[2..] holds
-- ARGV[1]   who must have the lock; left out: the holders are known
--
-- Returns PTTL of each key; nothing if that one does not have the lock.
--
-- Atomic because the times must be of one moment. Changes nothing.

if ARGV[1] and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  -- Changes nothing; but a replica, which may lack the lock, refuses.
  redis.call('HDEL', KEYS[1], ARGV[1])
  return {}
end
local answer = {}
for i = 1, #KEYS do
  answer[i] = redis.call('PTTL', KEYS[i])
end
return answer
