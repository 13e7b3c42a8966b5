-- free: how the script ends that frees the lock of a writer. If it read as well, that goes on, and
-- other readers may come in.
compete()
redis.call('HDEL', KEYS[1], ARGV[1])
local told = tell(publish, channel, '1')
if redis.call('HLEN', KEYS[1]) > 1 then
  redis.call('HSET', KEYS[1], 'mode', 'read')
else
  redis.call('DEL', KEYS[1])
end
return told
