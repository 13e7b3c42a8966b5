-- What goes before close.lua, for a fair lock: its owner waits no longer.
--
-- KEYS[4] the queue       see queue.lua
--
-- The next one is told here where the lock is free already, because the owner that leaves may have
-- been told itself; and of a lock that passes on, of whose new end waiters learn. No client can act
-- on the message before the script ends.
local left = leave(KEYS[4], ARGV[1])
local passes_on = ARGV[7] and look(redis.call, KEYS[1], ARGV[1]) == 1
if passes_on or (left > 0 and redis.call('EXISTS', KEYS[1]) == 0) then
  tell_next(KEYS[4], ARGV[3])
end

