-- 1 if this owner had it: it is free now, for a mutex has one field, and the key goes with that.
-- 0 if not.
local function drop(call, key, owner)
  return call('HDEL', key, owner)
end

