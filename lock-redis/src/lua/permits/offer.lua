-- Tells the waiters of other libraries how many permits are free, and the next of ours, and returns
-- what tell.lua does. Redisson's take a number below zero for an error; and where none is free, no
-- client need be told.
local function offer(publish, channel, free)
  if free <= 0 then
    return 1
  end
  local told = tell(publish, channel, free)
  -- Other data under the queue's key is no reason to keep permits.
  pcall(tell_next, queue_of(KEYS[1]), publish)
  return told
end

