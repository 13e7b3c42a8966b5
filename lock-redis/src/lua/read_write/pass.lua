-- Gives it to another owner. The holds of readers beside the former one end with the hash: its
-- lease is not made shorter then.
local function pass(key, writer, owner, lease)
  if redis.call('HLEN', key) == 2 then
    redis.call('DEL', key)
    return take(key, owner, lease)
  end
  redis.call('HSET', key, owner, '1')
  redis.call('HDEL', key, writer)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(lease)))
end

