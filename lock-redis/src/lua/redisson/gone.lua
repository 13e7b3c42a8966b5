-- Returns 0 by a write that changes nothing. A replica refuses the write, so it never answers 0 for
-- a lock that its master may have.
local function gone(call, key, owner)
  return call('HDEL', key, owner)
end

