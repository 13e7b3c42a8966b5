-- Tells the waiters how many permits are free: 1 more than clients were told, or {1, why none was}.
-- Redisson's take a number below zero for an error; and where none is free, no client need be told.
local function tell(publish, channel, free)
  local told = free > 0 and redis.pcall(publish, channel, free) or 0
  return type(told) == 'table' and {1, told.err} or 1 + told
end

