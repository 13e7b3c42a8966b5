-- Tells those who wait that a lock is free. Returns 1 more than clients were told, or {1, why none
-- was}: then the waiters find out by themselves, and the lock is free all the same.
local function tell(publish, channel, message)
  local told = redis.pcall(publish, channel, message)
  return type(told) == 'table' and {1, told.err} or 1 + told
end

