-- Owner and hold count; nothing if it is free.
local function holder(key)
  local value = redis.call('GETEX', key)
  return value and {value, '1'} or {}
end

