-- What goes before close.lua, for a fair lock: what else happens to the queue.
--
-- KEYS[4] the queue       see queue.lua

-- An owner that does not hold the lock waits no longer. It may have been told that it is next.
local not_ours = gone
local function gone(call, key, owner)
  if leave(KEYS[4], owner) > 0 and redis.call('EXISTS', key) == 0 then
    tell_next(KEYS[4], ARGV[3])
  end
  return not_ours(call, key, owner)
end

-- The owner that is next learns of the new end.
local pass_on = pass
local function pass(key, owner, next, lease)
  local refused = pass_on(key, owner, next, lease)
  tell_next(KEYS[4], ARGV[3])
  return refused
end

