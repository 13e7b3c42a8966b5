-- What goes before force.lua, for a fair lock.
--
-- KEYS[#KEYS] the queue   see queue.lua

-- The head of the queue of a free lock, which does not take it, waits no longer. Other data under
-- the queue's key is no reason to keep the lock.
pcall(function()
  if redis.call('PTTL', KEYS[1]) == -2 then
    leave(first(clock()) or '')
  end
  tell_next(ARGV[2])
end)

