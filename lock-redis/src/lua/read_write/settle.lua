-- Behind the end of a reader's hold: frees the lock if it was the last. Returns 1 more than clients
-- were told, or {1, why none was}.
local function settle(key, channel, publish)
  if redis.call('HLEN', key) ~= 1 then
    return 1
  end
  -- Only `mode` is left.
  local told = tell(publish, channel, '0')
  redis.call('DEL', key)
  return told
end

