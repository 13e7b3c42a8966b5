-- Tells the waiters how many permits are free, and returns what tell.lua does. Redisson's take a
-- number below zero for an error; and where none is free, no client need be told.
local function offer(publish, channel, free)
  return free > 0 and tell(publish, channel, free) or 1
end

