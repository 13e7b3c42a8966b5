-- Frees the lock if this writer has it, or whoever has it if no owner is named. If the writer read
-- as well, that goes on, and other readers may come in. Returns 1 if it is the writer's no more, 0
-- if it was not.
local function free(key, owner)
  if not owner then
    return unlink(key)
  end
  if redis.call('HDEL', key, owner) == 0 then
    return 0
  end
  if redis.call('HLEN', key) > 1 then
    redis.call('HSET', key, 'mode', 'read')
  else
    redis.call('DEL', key)
  end
  return 1
end

