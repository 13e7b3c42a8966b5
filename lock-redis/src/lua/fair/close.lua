-- What goes before close.lua, for a fair lock: its owner waits no longer, and the one that is next
-- is told.
--
-- KEYS[4] the queue       see queue.lua
--
-- Told also by a waiter that leaves a free lock: it may have been told itself. No client can act on
-- the message before the script ends.
local left = leave(KEYS[4], ARGV[1])
if look(redis.call, KEYS[1], ARGV[1]) == 1 or (left > 0 and redis.call('EXISTS', KEYS[1]) == 0) then
  tell_next(KEYS[4], ARGV[3])
end

