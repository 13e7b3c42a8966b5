-- What goes before release.lua and close.lua, for a fair lock.
--
-- KEYS[#KEYS] the queue   see queue.lua

-- An owner that does not hold the lock waits no longer. It may have been told that it is next.
local not_ours = gone
local function gone(call, key, owner)
  if leave(owner) > 0
    and (redis.call('EXISTS', key) == 0 or redis.call('HGET', key, 'mode') == 'read') then
    tell_next(ARGV[3])
  end
  return not_ours(call, key, owner)
end

