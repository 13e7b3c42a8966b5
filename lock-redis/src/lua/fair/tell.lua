-- What goes behind tell.lua, for a fair read-write lock: the owner that is next is told, too.
--
-- KEYS[#KEYS] the queue   see queue.lua
local tell_all = tell
local function tell(publish, channel, message)
  local told = tell_all(publish, channel, message)
  -- Other data under the queue's key is no reason to keep the lock.
  pcall(tell_next, publish)
  return told
end

