-- 0, after a write that a replica refuses. A writer that does not have the lock has waited for it,
-- and waits no more: those that it kept out are told.
local function gone(call, key, owner)
  if call('GET', KEYS[#KEYS]) == owner then
    call('DEL', KEYS[#KEYS])
    redis.pcall(ARGV[3], ARGV[2], '1')
  end
  return call('HDEL', key, owner)
end

