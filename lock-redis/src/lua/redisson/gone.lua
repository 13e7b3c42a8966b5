-- 0, after a write that changes nothing: a replica refuses it, and what that lacks its master may
-- have.
local function gone(call, key, owner)
  return call('HDEL', key, owner)
end

