-- Owner and hold count; nothing if it is free. A text that is too long for a lock is not read: an
-- error is returned, that of any other kind of value.
local function holder(key)
  if redis.call('STRLEN', key) > 4096 then
    return redis.pcall('HLEN', key)
  end
  local value = redis.call('GETEX', key)
  return value and {value, '1'} or {}
end
