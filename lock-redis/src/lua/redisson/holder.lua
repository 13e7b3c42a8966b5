-- Owner and hold count; nothing if it is free.
local function holder(key)
  return redis.call('HGETALL', key)
end

