-- free: how the script ends that frees the lock of all holders.
local told = redis.pcall(publish, channel, '1')
redis.call('DEL', KEYS[1])
if type(told) == 'table' then
  return {1, told.err}
end
return 1 + told
