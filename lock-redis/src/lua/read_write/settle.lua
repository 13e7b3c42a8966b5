-- Behind the end of a reader's hold: frees the lock if it was the last. Returns 1 more than clients
-- were told, or {1, why none was}.
local function settle(key, channel, publish)
  if redis.call('HLEN', key) ~= 1 then
    return 1
  end
  -- Only `mode` is left.
  redis.call('DEL', key)
  return tell_all(key, publish, channel)
end

